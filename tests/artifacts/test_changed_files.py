"""Files of artifacts changed at random: never another program, never a raw error.

Changes of bytes are noticed by the checksum. Changes of fields come with a checksum that fits, as
from somebody who means harm: what is read is then checked field by field and against the modules.
"""

import contextlib
import copy
import random
import warnings
from collections.abc import Mapping

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.artifacts.description import dtype_of
from namedmesh.runtime import Artifact, Executable, TensorSpec
from namedmesh.signature.nest import flatten
from tests.artifacts.files import replace_manifest
from tests.changes import change_bytes, change_field

B, M = nm.dims("batch=4 model=6")
X = np.ones((4, 6), np.float32)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    def f(batch, rate):
        w = nm.param("w", [M])
        nm.assign(w, w - nm.grad(nm.mean(batch["x"] * w), w) * rate)
        return {"loss": nm.sum(batch["x"]), ("a", B): [nm.max(batch["x"]), None]}

    program = nm.trace(f, {"x": nm.spec([B, M])}, nm.spec([]))
    return nm.export(program, nm.Mesh(data=2, model=2), "batch:data, model:model")


def test_changed_bytes_are_noticed(artifact):
    rng, contents = random.Random(0), artifact.to_bytes()
    for _ in range(500):
        changed = change_bytes(contents, rng)
        if changed != contents:
            with pytest.raises(nm.NamedMeshError) as error:
                Artifact.from_bytes(changed)
            assert error.value.fix == "export it again with nm.export"


def ones(specs: Mapping[str, TensorSpec]) -> dict[str, np.ndarray]:
    """An array of ones for each tensor."""
    return {name: np.ones(spec.sizes, dtype_of(spec.dtype)) for name, spec in specs.items()}


def run(artifact: Artifact) -> np.ndarray:
    """The results of a step, flat."""
    step = Executable(artifact, strict=False)
    state = step.place(
        {name: np.ones(spec.sizes, spec.dtype) for name, spec in step.variables.items()}
    )
    inputs = {name: np.ones(spec.sizes, spec.dtype) for name, spec in step.inputs.items()}
    state, results = step(state, **inputs)
    leaves = [*flatten(results), *state.values()]
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])


def changed_manifests(artifact: Artifact, count: int, seed: int):
    """Artifacts that were read from changed manifests, where those are still read."""
    rng = random.Random(seed)
    for _ in range(count):
        manifest = copy.deepcopy(artifact.manifest())
        for _ in range(rng.choice([1, 1, 2])):
            change_field(manifest, rng)
        try:
            yield Artifact.from_bytes(replace_manifest(artifact, manifest))
        except nm.NamedMeshError as error:
            assert error.fix == "export it again with nm.export"


def test_changed_fields_are_noticed_or_harmless(artifact):
    artifact = Artifact.from_bytes(artifact.to_bytes())
    seen, runs = 0, []
    for changed in changed_manifests(artifact, 400, seed=1):
        seen += 1
        fields = ("mesh", "inputs", "variables", "outputs")
        if any(getattr(changed, field) != getattr(artifact, field) for field in fields):
            runs.append(changed)
    assert 20 < seen < 300
    expected, finished = run(artifact), 0
    for changed in runs[:8]:
        with contextlib.suppress(nm.NamedMeshError), warnings.catch_warnings(action="ignore"):
            np.testing.assert_allclose(np.sort(run(changed)), np.sort(expected), rtol=1e-5)
            finished += 1
    assert finished < 8
