"""What a Trainer cannot work with is an error at the start, and what it leaves out is said."""

import pytest

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.training import Checkpoints, Intervals, NumberedBatches, Trainer
from tests.training.programs import B, M, batch, compiled
from tests.training.trainers import make, train


def test_checkpoints_that_are_only_read_are_refused_at_the_start(tmp_path):
    train(tmp_path, Intervals(2))
    with pytest.raises(NamedMeshError) as error:
        make(tmp_path, Intervals(4), checkpoints=Checkpoints(tmp_path / "checkpoints"))
    assert error.value.problem.endswith("were opened without keep=, only to be read")
    assert error.value.fix == "say how many to keep: Checkpoints(folder, keep=3)"


def returning(function) -> nm.Step:
    """A step that returns something of its input."""
    return nm.compile(function, x=nm.spec([B, M]), mesh=nm.Mesh(data=1))


@pytest.mark.parametrize(
    "function, problem, details",
    [
        (lambda x: nm.mean(x), "does not return a dict", ("it returns float32[]",)),
        (
            lambda x: {"loss": nm.mean(x), "x": x, "pair": (nm.sum(x), nm.mean(x))},
            "has results that are not scalars",
            ("x: float32[batch=12, model=5]", "pair: a tuple"),
        ),
    ],
)
def test_a_step_must_return_a_dict_of_scalars(function, problem, details):
    with pytest.raises(NamedMeshError) as error:
        Trainer(returning(function), NumberedBatches(batch), Intervals(2))
    assert error.value.problem.endswith(problem) and error.value.details == details
    assert error.value.fix == "return a dict of scalars, e.g. {'loss': loss}"


@pytest.mark.parametrize(
    "stream, kind",
    [([batch(0)], "list"), (batch, "function"), (None, "NoneType")],
    ids=["list", "function", "None"],
)
def test_a_stream_must_be_one(tmp_path, stream, kind):
    with pytest.raises(NamedMeshError) as error:
        make(tmp_path, Intervals(2), stream=stream)
    assert error.value.problem == f"the stream is a {kind}, not a Stream"
    assert error.value.fix == (
        "give an object with read_from(position) and digest, or make one of a list: "
        "NumberedBatches(lambda number: batches[number % len(batches)])"
    )


def test_what_a_stream_makes_is_checked(tmp_path):
    class Bare:
        digest = "data"

        def read_from(self, position):
            yield batch(0)

    with pytest.raises(NamedMeshError, match="the stream made a dict, expected a pair"):
        make(tmp_path, Intervals(2), stream=Bare()).run()
    rows = NumberedBatches(lambda number: [1, 2])
    with pytest.raises(NamedMeshError, match="a batch is a list, expected the inputs of the step"):
        make(tmp_path, Intervals(2), stream=rows).run()


def test_watching_what_is_not_a_result_is_an_error(tmp_path):
    with pytest.raises(NamedMeshError) as error:
        make(tmp_path, Intervals(2), watch=["lss"])
    assert error.value.problem == "watch= names 'lss', which the step does not return"
    assert error.value.details == ("it returns: loss",)
    assert error.value.fix == "did you mean 'loss'?"
    with pytest.raises(NamedMeshError, match=r"fix: give a list: \['loss'\]"):
        make(tmp_path, Intervals(2), watch="loss")


def test_what_is_not_watched_or_not_known_is_said():
    said = []
    executable = returning(lambda x: {"mean": nm.mean(x)})
    Trainer(executable, NumberedBatches(batch), Intervals(2), flops=1e6, say=said.append)
    assert said == [
        "no result is named loss or grad_norm: none is checked to be finite",
        "the peak FLOPs of 'cpu' are not known: no utilization (mfu) is logged "
        "(a Trainer may be given peak_flops=)",
    ]


@pytest.mark.parametrize("options", [{"checkpoints": "run"}, {"initial": {}}, {"profile": "trace"}])
def test_options_are_checked(tmp_path, options):
    ((name, value),) = options.items()
    with pytest.raises(NamedMeshError) as error:
        make(tmp_path, Intervals(2), **options)
    assert error.value.problem == f"{name} of a Trainer is a {type(value).__name__}"
    with pytest.raises(NamedMeshError, match="intervals of a Trainer is a int"):
        make(tmp_path, 100)  # pyright: ignore
    with pytest.raises(NamedMeshError, match="the step to train is a Program, expected an Exec"):
        program = nm.trace(lambda x: nm.mean(x), x=nm.spec([B, M]))
        Trainer(program, NumberedBatches(batch), Intervals(2))  # pyright: ignore


def test_an_evaluation_must_return_numbers(tmp_path):
    with pytest.raises(NamedMeshError) as error:
        train(tmp_path, Intervals(2), evaluate=lambda state: {"dev_loss": "low", "bleu": None})
    assert error.value.problem == (
        "what evaluate returned is not a dict of numbers: could not convert string to float: 'low'"
    )
    with pytest.raises(NamedMeshError, match="what evaluate returned is not a dict of numbers"):
        train(tmp_path / "other", Intervals(2), evaluate=lambda state: 2.5)  # pyright: ignore


def test_a_checkpoint_that_no_trainer_saved_is_an_error(tmp_path):
    with Checkpoints(tmp_path / "checkpoints", keep=3) as checkpoints:
        checkpoints.save(5, compiled("train", "two").init())
    with pytest.raises(NamedMeshError, match=r"of step 5 in .* is not that of a Trainer"):
        make(tmp_path, Intervals(10))
