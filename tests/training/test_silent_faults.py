"""Faults that nothing reports by itself: a flipped bit, a wrong op, a number that is not finite."""

import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.cli.main import main
from namedmesh.training import Intervals, NumberedBatches, Trainer, copies
from tests.processes.workers import START, run_processes
from tests.training.damage import flip_bit

B, M = nm.dims("batch=8 model=4")


@pytest.mark.parametrize("device", [0, 1, 3])
def test_a_flipped_bit_in_one_copy_is_noticed_within_the_interval(monkeypatch, device):
    monkeypatch.setattr(copies, "_memories", {})
    step = nm.compile(program(), mesh=nm.Mesh(data=4), layout="batch:data")

    def feed(inputs, taken):
        if taken == 9:
            trainer.state.arrays["w"] = flip_bit(trainer.state.arrays["w"], device)
        return inputs

    stream = NumberedBatches(lambda number: numbers(number % 10))
    options = {"feed": feed, "say": lambda _: None}
    trainer = Trainer(step, stream, Intervals(20, check_every=4, copy_every=3), **options)
    with pytest.raises(nm.NamedMeshError) as error:
        trainer.run()
    assert trainer.steps_taken == 12
    assert error.value.problem == "after step 12, copies of a shard of w differ between devices"
    assert error.value.details[1] == f"devices {device}: one value"
    assert not copies._memories  # one of them has the flipped bit


@pytest.mark.parametrize(("params", "warns"), [("model:data", True), (None, False)])
def test_a_comparison_of_copies_where_there_are_none_is_a_warning(recwarn, params, warns):
    step = nm.compile(program(), mesh=nm.Mesh(data=4), layout="batch:data", params=params)
    Trainer(step, NumberedBatches(numbers), Intervals(20, check_every=4), say=lambda _: None)
    texts = [str(one.message) for one in recwarn if "check_every" in str(one.message)]
    expected = "check_every=4 compares nothing: every shard is on one device of Mesh(data=4)"
    assert [text.partition(";")[0] for text in texts] == [expected] * warns


@pytest.mark.filterwarnings("error")  # there are copies to compare
def test_without_a_fault_nothing_is_noticed_and_nothing_changes():
    states = []
    for every in (0, 3):
        step = nm.compile(program(), mesh=nm.Mesh(data=4), layout="batch:data")
        intervals = Intervals(9, check_every=every)
        trainer = Trainer(step, NumberedBatches(numbers), intervals, say=lambda _: None)
        trainer.run()
        states.append(trainer.state.digest())
    assert states[0] == states[1]


class Doubled(nm.Op):
    """x + x, which where it is compiled has one wrong element: a fault of a compiler, or ours."""

    elementwise = True
    broken = False

    def results(self):
        return [(self.inputs[0].shape, self.inputs[0].dtype)]

    def lower(self, context, x):
        if self.broken and type(context).__name__ != "Eager":
            return x + x * 1.5
        return x + x

    def vjp(self, dy):
        return [dy * 2.0]


def train(x):
    w = nm.param("w", [M], nm.constant_init(1.0))
    hidden = nm.tanh(Doubled((x * w,)).output)
    loss = nm.mean(nm.log(nm.sum(x, M) + nm.square(nm.mean(hidden, M))))
    nm.assign(w, w - nm.grad(loss, w) * 0.01)
    return {"loss": loss}


def numbers(number):
    x = np.random.default_rng(number).uniform(1, 2, (8, 4)).astype(np.float32)
    return {"x": -x if number == 13 else x}  # the logarithm of a negative number is not finite


PROGRAM = f"{__file__}:program"


def program():
    return nm.trace(train, nm.spec([B, M]))


def stop_at_nan(tmp_path, batches=numbers, **options) -> str:
    """The message of a run whose step 14 has a loss that is not finite."""
    step = nm.compile(program(), mesh=nm.Mesh(data=4), layout="batch:data")
    record = tmp_path / "records"
    trainer = Trainer(
        step, NumberedBatches(batches), Intervals(30), record=record, say=lambda _: None, **options
    )
    with pytest.raises(nm.NamedMeshError) as error:
        trainer.run()
    assert error.value.problem == "the loss of step 14 is nan"
    return str(error.value)


@pytest.mark.parametrize("saved", [False, True])
def test_a_step_with_nan_is_recorded_and_replay_names_the_op(tmp_path, capsys, saved):
    options = {}
    if saved:
        options["checkpoints"] = nm.training.Checkpoints(tmp_path / "checkpoints", keep=2)
    text = stop_at_nan(tmp_path, **options)
    assert f"namedmesh replay 14 PROGRAM --record {tmp_path / 'records'}" in text
    words = ["replay", "14", PROGRAM, "--record", str(tmp_path / "records")]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "because the loss of step 14 is nan" in out
    (line,) = [one for one in out.splitlines() if "not finite" in one]
    assert "nm.log(" in line or "test_silent_faults.py:" in line
    assert "differs" not in out


def replay(tmp_path, step=14, program=PROGRAM) -> int:
    """Run `namedmesh replay` on the records of `stop_at_nan`."""
    return main(["replay", str(step), program, "--record", str(tmp_path / "records")])


def test_replay_names_an_input_that_was_not_finite_before_any_op(tmp_path, capsys):
    def batches(number):
        x = np.ones((8, 4), np.float32)
        x[3, 2] = np.nan if number == 13 else 1
        return {"x": x}

    stop_at_nan(tmp_path, batches)
    assert replay(tmp_path) == 1
    line = "not finite before any op: input x: 1 of 32 elements, the first at [3, 2]"
    assert capsys.readouterr().out.splitlines()[1:] == [line]


def narrow():
    def train_narrow(x):
        return train(nm.cast(x, "float32"))

    return nm.trace(train_narrow, x=nm.spec([B, M], "bfloat16"))


def test_inputs_of_dtypes_that_numpy_does_not_know_are_replayed(tmp_path, capsys):
    step = nm.compile(narrow(), mesh=nm.Mesh(data=4), layout="batch:data")
    batches = NumberedBatches(lambda number: {"x": numbers(number)["x"].astype(ml_dtypes.bfloat16)})
    options = {"record": tmp_path / "records", "say": lambda _: None}
    with pytest.raises(nm.NamedMeshError, match="the loss of step 14 is nan"):
        Trainer(step, batches, Intervals(30), **options).run()
    assert replay(tmp_path, program=f"{__file__}:narrow") == 1
    assert "the first value that is not finite: " in capsys.readouterr().out


def test_replay_of_a_step_without_a_record_lists_those_with_one(tmp_path, capsys):
    stop_at_nan(tmp_path)
    assert replay(tmp_path, 15) == 2
    text = capsys.readouterr().err
    assert f"error: {tmp_path / 'records'} has no record of step 15" in text
    assert text.endswith("fix: it has 14\n")


@pytest.mark.parametrize("name", ["record.json", "state.safetensors", "inputs.npz"])
@pytest.mark.parametrize("damage", [None, b"", b"{", b"{}", b"[" * 10000, bytes(100)])
def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path, capsys, name, damage):
    stop_at_nan(tmp_path)
    file = tmp_path / "records" / "14" / name
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    assert replay(tmp_path) == 2
    text = capsys.readouterr().err
    assert "error: " in text and name in text and "fix: " in text


@pytest.mark.parametrize("offset", [6, 8])  # of what is encrypted, and of how it is compressed
def test_a_record_whose_files_are_packed_in_an_unknown_way_is_damaged(tmp_path, capsys, offset):
    stop_at_nan(tmp_path)
    file = tmp_path / "records" / "14" / "inputs.npz"
    data = bytearray(file.read_bytes())
    for start, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        data[data.index(start) + offset + shift] = 1
    file.write_bytes(data)
    assert replay(tmp_path) == 2
    assert "is damaged: inputs.npz: " in capsys.readouterr().err


def test_a_record_that_cannot_be_written_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("namedmesh.training.record.save_weights", refuse)
    text = stop_at_nan(tmp_path)
    assert "there is no record of step 14: [Errno 28] No space left on device" in text


ALONE = """
import functools
import namedmesh as nm
from namedmesh.training import Intervals, NumberedBatches, Trainer, weights
from tests.training.test_silent_faults import numbers, program

def refuse(*_):
    raise OSError(28, "No space left on device")

if processes.first:  # which writes for all
    weights._write = refuse
step = nm.compile(program(), mesh=nm.Mesh(data=2), layout="batch:data")
batches = lambda number: {"x": numbers(number)["x"][step.rows("x")]}
checkpoints = nm.training.Checkpoints(f"{sys.argv[1]}/checkpoints", keep=2)
options = {"record": f"{sys.argv[1]}/records", "checkpoints": checkpoints}
Trainer(step, NumberedBatches(batches), Intervals(30, save_every=5), **options).run()
"""


def test_where_only_the_writing_process_fails_all_say_what_went_wrong(tmp_path):
    ended = run_processes(START + ALONE, 2, str(tmp_path))
    for one in ended:
        assert "the loss of step 14 is nan" in one.errors
        assert "the last good checkpoint, of step 10, is kept" in one.errors
    assert "there is no record of step 14: [Errno 28]" in ended[0].errors


def test_a_folder_for_records_that_cannot_be_made_is_refused_before_training(tmp_path):
    (tmp_path / "records").write_text("a file")
    step = nm.compile(program(), mesh=nm.Mesh(data=4), layout="batch:data")
    with pytest.raises(nm.NamedMeshError) as error:
        Trainer(step, NumberedBatches(numbers), Intervals(30), record=tmp_path / "records")
    assert "File exists" in str(error.value) and str(tmp_path / "records") in str(error.value)


def test_replay_of_a_script_that_parses_its_arguments_says_where_to_put_them(tmp_path, capsys):
    stop_at_nan(tmp_path)
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(2)\n")
    assert main(["replay", "14", f"{script}:step", "--record", str(tmp_path / "records")]) == 2
    assert 'fix: put what a script does under `if __name__ == "__main__":`' in (
        capsys.readouterr().err
    )


def test_a_planted_wrong_op_is_found_by_replay(tmp_path, capsys, monkeypatch):
    stop_at_nan(tmp_path)
    monkeypatch.setattr(Doubled, "broken", True)
    assert main(["replay", "14", PROGRAM, "--record", str(tmp_path / "records")]) == 1
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "differs" in one]
    assert "test_silent_faults.py:" in line and "hidden" in line and "32 of 32 elements" in line


def test_the_state_of_a_record_is_that_before_the_step(tmp_path):
    from safetensors.numpy import load_file

    stop_at_nan(tmp_path)
    step = nm.compile(program(), mesh=nm.Mesh(data=4), layout="batch:data")
    state = step.init(0)
    for number in range(13):
        state, _ = step(state, **numbers(number))
    recorded = load_file(tmp_path / "records" / "14" / "state.safetensors")
    np.testing.assert_array_equal(recorded["w"], np.asarray(state["w"]))
    with np.load(tmp_path / "records" / "14" / "inputs.npz") as inputs:
        np.testing.assert_array_equal(inputs["x"], numbers(13)["x"])
