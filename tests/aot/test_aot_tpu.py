"""Compiling for TPU with its real compiler, where there is one."""

import importlib.util
import json
import os
import platform
import subprocess
import sys

import pytest

import namedmesh as nm
from benchmarks.moe import Sizes, program
from namedmesh.audit.backend_rules import BETWEEN_SLICES
from tests.aot.stack import B, M, train

pytestmark = pytest.mark.skipif(
    not os.environ.get("TPU_LIBRARY_PATH") and importlib.util.find_spec("libtpu") is None,
    reason=f"the TPU compiler (libtpu) is not here ({platform.system()} {platform.machine()}); "
    "it runs on x86-64 Linux",
)


def aot(folder, *artifacts: nm.Artifact, target: str = "tpu-v3:2x2") -> list[dict]:
    """The rows of one run of the command in a process of its own."""
    paths = []
    for i, artifact in enumerate(artifacts):
        paths.append(str(folder / f"model{i}.nmesh"))
        artifact.save(paths[-1])
    out = folder / "out.json"
    command = [
        sys.executable,
        "-m",
        "namedmesh.aot",
        *paths,
        "--target",
        target,
        "--json",
        str(out),
    ]
    # The TPU compiler stops at flags of XLA that it does not know, as tests on CPUs have them.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, env=environment)
    assert out.exists(), done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.mark.slow
def test_layers_that_fit_and_that_do_not(tmp_path):
    export = lambda sizes: nm.export(program(sizes), nm.Mesh(all=8), "group:all, expert:all")
    huge = Sizes(group=512, seq=1024, model=4096, hidden=16384, expert=64)
    small, large = aot(tmp_path, export(Sizes()), export(huge))
    assert (
        small["fits"]
        and small["collectives_match_plan"]
        and small["peak_bytes"] < small["hbm_bytes"]
    )
    assert 15 * 2**30 < small["hbm_bytes"] < 16 * 2**30
    assert {(one["kind"], one["made"]) for one in small["collectives"]} == {
        ("AllToAll", 4),
        ("AllReduce", 1),
    }
    assert not large["fits"] and large["error"].startswith("out of memory by")
    assert large["peak_bytes"] > large["hbm_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["data=2 model=4", "data=4 model=2"])
def test_two_slices_add_up_inside_and_send_the_shards(axes, tmp_path):
    mesh = nm.Mesh.parse(f"{axes} slices=2")
    stack = nm.trace(train, x=nm.spec([B, M]))
    artifact = nm.export(stack, mesh, "batch:data, hidden:model", precision="highest")
    (row,) = aot(tmp_path, artifact, target="tpu-v5e:2x2:2")
    assert row["fits"] and row["collectives_match_plan"], row["problems"]
    assert row["rules"] == {BETWEEN_SLICES.name: 3}


@pytest.mark.slow
def test_a_module_that_jaxlib_does_not_read_is_read_as_libtpu_wrote_it(tmp_path):
    """A gather on sparse cores: its update has operands, which jaxlib 0.10 refuses to read."""
    V, M, B, S = nm.dims("vocab=128256 model=4096 batch=16 seq=8192")

    def step(tokens):
        rows = nm.gather(nm.cast(nm.param("w", [V, M]), "bfloat16"), tokens, V)
        return nm.sum(nm.cast(rows, "float32"))

    program = nm.trace(step, nm.spec([B, S], "int32"))
    artifact = nm.export(program, nm.Mesh(x=8), "batch:x", params="model:x")
    (row,) = aot(tmp_path, artifact, target="tpu-v6e:2x4")
    assert row["fits"] and row["collectives_match_plan"], row["problems"]
    assert {one["kind"] for one in row["collectives"]} == {"AllGather", "AllReduce"}
    assert 0 < row["scheduled_seconds"] < 0.1
