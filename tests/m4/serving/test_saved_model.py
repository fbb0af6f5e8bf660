"""A run as a SavedModel: loaded by TensorFlow alone, it translates as the run does."""

import subprocess
import sys

import numpy as np
import pytest

from examples.m4.input.batches import evaluation_batches
from examples.m4.run import Run
from examples.m4.serving.saved_model import write_run
from examples.m4.translation import Translator
from tests.m4.runs import copied, good, run

pytestmark = pytest.mark.slow

LOAD = """
import sys, numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2])
found = model.signatures["serving_default"](**{name: tf.constant(given[name]) for name in given})
np.savez(sys.argv[3], **{name: value.numpy() for name, value in found.items()})
assert "namedmesh" not in sys.modules
"""


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_translations_are_those_of_the_run(kind, request, tmp_path):
    folder = copied(request.getfixturevalue(kind), tmp_path / "run")
    if kind == "experts":
        good(run("train", folder, {"steps": 5}))
    trained = Run(folder)
    settings = trained.settings
    written = write_run(trained, settings, say=lambda text: None)
    assert written == folder / "saved_model" / str(10 if kind == "dense" else 5)
    assert {path.name for path in (written / "assets").iterdir()} == {
        "source.model",
        "target.model",
    }
    (of_set,) = trained.tests.values()
    texts = [source for pairs in of_set.values() for source, _ in pairs]
    ids = [(one, []) for one in trained.vocabularies.source.encode(texts)]
    length = settings.translation_length
    batch = next(evaluation_batches(ids, settings.translation_rows, length, length))
    inputs = {name: batch.arrays[name] for name in ("source", "source_segments")}
    np.savez(tmp_path / "in.npz", allow_pickle=False, **inputs)
    paths = [str(written), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    subprocess.run([sys.executable, "-c", LOAD, *paths], check=True, cwd=tmp_path)
    found = np.load(tmp_path / "out.npz")
    translator = Translator.open(trained, settings, say=lambda text: None)
    _, wanted = translator.executable(translator.state, **inputs)
    np.testing.assert_array_equal(found["sequences"], np.asarray(wanted["sequences"]))
    np.testing.assert_allclose(found["scores"], np.asarray(wanted["scores"]), rtol=1e-4)
