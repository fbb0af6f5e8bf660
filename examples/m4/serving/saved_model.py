"""A run as a SavedModel, for those who serve with TensorFlow Serving; needs TensorFlow."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import namedmesh as nm
from examples.m4.programs import trace_translate
from examples.m4.run import Run
from examples.m4.settings import Settings
from examples.m4.translation import Translator


def write_run(
    run: Run, settings: Settings, which: str = "newest", say: Callable[[str], None] = print
) -> pathlib.Path:
    """Write the translate step with the weights of a checkpoint; return the folder.

    It takes what `translate` does: `source`, token ids with the end of sentence, one sentence a row
    and 0 behind it, and `source_segments`, 1 for each of them. Of what it returns, `sequences` has
    the ids of each hypothesis and `scores` their scores, the best first. Both vocabularies are
    among its assets. The folder's name is the step, which TensorFlow Serving takes as the version.
    """
    translator = Translator.open(run, settings, which, say)
    folder = run.folder / "saved_model" / str(translator.step)
    vocabularies = [run.data / f"{side}.model" for side in ("source", "target")]
    nm.write_saved_model(trace_translate(settings), translator.state, folder, assets=vocabularies)
    return folder
