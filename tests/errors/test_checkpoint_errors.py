"""Wrong calls of checkpoints, weights and trainers; neither state nor files change after any."""

# pyright: reportArgumentType=false, reportCallIssue=false

import pathlib

import numpy as np

from namedmesh.training import Checkpoints, Intervals, NumberedBatches, Trainer, load_weights
from tests.errors.running import assert_nothing_has_changed, given
from tests.errors.wrong import Table, message_of

wrong = Table()


def saved() -> Checkpoints:
    """Checkpoints that have one of step 10."""
    checkpoints = Checkpoints("checkpoints", keep=2)
    if checkpoints.latest is None:
        things = given()
        checkpoints.save(10, things["step"].init(0))  # pyright: ignore
        checkpoints.wait()
    return checkpoints


@wrong("""
keep=0 is not a count
  at LINE: Checkpoints("checkpoints", keep=0)
  fix: give a whole number, 1 or more
""")
def keeping_none():
    Checkpoints("checkpoints", keep=0)


@wrong("""
host_memory='1 GB' is not a count
  at LINE: Checkpoints("checkpoints", keep=1, host_memory="1 GB")
  fix: give a whole number, 1 or more
""")
def memory_in_words():
    Checkpoints("checkpoints", keep=1, host_memory="1 GB")


@wrong("""
mode='least' is not a choice
  at LINE: Checkpoints("checkpoints", mode="least")
  fix: give 'min' or 'max'
""")
def mode_of_another_name():
    Checkpoints("checkpoints", mode="least")


@wrong(
    """
the folder of the checkpoints is a NoneType, expected a path
  at LINE: Checkpoints(None, keep=1)
  fix: give a string or a pathlib.Path
"""
)
def folder_that_is_none():
    Checkpoints(None, keep=1)


@wrong("""
step='11' is not a count
  at LINE: saved().save("11", state)
  fix: give a whole number, 0 or more
""")
def step_that_is_text(state):
    saved().save("11", state)


@wrong("""
step=-1 is not a count
  at LINE: saved().save(-1, state)
  fix: give a whole number, 0 or more
""")
def step_below_zero(state):
    saved().save(-1, state)


@wrong("""
the state to save is a dict, expected a State
  at LINE: saved().save(11, dict(state))
  fix: save what step.init, step.place({name: array}) or a step returned
""")
def state_that_is_a_dict(state):
    saved().save(11, dict(state))


@wrong("""
extra cannot be written as JSON
  rng: Object of type Generator is not JSON serializable
  at LINE: saved().save(11, state, {"rng": np.random.default_rng(0)})
  fix: give numbers, strings, lists and dicts, e.g. int(count) and array.tolist()
""")
def extra_that_is_no_json(state):
    saved().save(11, state, {"rng": np.random.default_rng(0)})


@wrong("""
metrics is not a dict of numbers: could not convert string to float: 'low'
  at LINE: saved().save(11, state, metrics={"dev_loss": "low"})
  fix: give a number for each name, e.g. {'dev_loss': 2.5}
""")
def metric_that_is_text(state):
    saved().save(11, state, metrics={"dev_loss": "low"})


@wrong(
    """
the program to restore is a str, expected an Executable
  at LINE: saved().restore("train.nmesh")
  fix: give a compiled step: nm.compile(function, ..., mesh=mesh), or load(path) of an Artifact
"""
)
def program_that_is_a_path():
    saved().restore("train.nmesh")


@wrong("""
missing='zero' is not a choice
  at LINE: saved().restore(step, missing="zero")
  fix: give 'error' or 'init'
""")
def missing_of_another_name(step):
    saved().restore(step, missing="zero")


@wrong("""
there is no checkpoint 'newset'
  at LINE: saved().find("newset")
  fix: give best, newest or a number of steps
""")
def checkpoint_of_another_name():
    saved().find("newset")


@wrong("""
the step to train is a str, expected an Executable
  at LINE: Trainer("step", NumberedBatches(dict), Intervals(3))
  fix: give a compiled step: nm.compile(function, ..., mesh=mesh), or load(path) of an Artifact
""")
def trainer_of_a_name():
    Trainer("step", NumberedBatches(dict), Intervals(3))


@wrong("""
the file of the weights is a int, expected a path
  at LINE: load_weights(3, step)
  fix: give a string or a pathlib.Path
""")
def weights_in_a_number(step):
    load_weights(3, step)


@wrong.rows
def test_message_and_nothing_has_changed(function, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    things = given()
    assert message_of(function, **things) == message
    assert_nothing_has_changed(things["step"], things["state"])
    folder = pathlib.Path("checkpoints")
    assert not folder.exists() or [*folder.glob("[!.]*")] in ([], [folder / "10"])
