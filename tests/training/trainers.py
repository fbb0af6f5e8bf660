"""Trainers of the small program."""

from namedmesh.training import (
    Checkpoints,
    Intervals,
    NumberedBatches,
    Trainer,
)
from tests.training.programs import batch, compiled


def make(folder, intervals: Intervals, place: str = "two", **options) -> Trainer:
    """A trainer of the small program, quiet unless it is told otherwise."""
    if "checkpoints" not in options:
        options["checkpoints"] = Checkpoints(folder / "checkpoints", keep=3)
    defaults = {
        "metrics": folder / "metrics.jsonl",
        "say": lambda text: None,
        "count_tokens": lambda inputs: inputs["x"].size,
    }
    stream = options.pop("stream", NumberedBatches(batch, "data"))
    return Trainer(compiled("train", place), stream, intervals, **{**defaults, **options})


def train(folder, intervals: Intervals, **options) -> Trainer:
    """A trainer that has run, with everything written."""
    made = make(folder, intervals, **options)
    try:
        made.run()
    finally:
        if made.checkpoints is not None:
            made.checkpoints.close()
    return made
