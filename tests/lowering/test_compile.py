"""Compiling: an equal program is compiled once in a process, and nothing is logged."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.artifacts.stablehlo import prepare
from namedmesh.runtime import compiling
from tests.ops.attention_cases import SPECS, by_matrices, make_step

B, M = nm.dims("batch=8 model=4")
TINY = """
import namedmesh as nm
B = nm.Dimension("batch", 8)
step = nm.compile(nm.sum, nm.spec([B]), mesh=nm.Mesh(data=2), layout="batch:data")
step.init(seed=0)
"""


def scale(x):
    return x * nm.param("scale_of_test_compile", [M])


@pytest.fixture
def compiled(monkeypatch):
    """What was compiled, in order."""
    modules = []
    compile_lowered = compiling.compile_lowered
    monkeypatch.setattr(
        compiling, "compile_lowered", lambda one: modules.append(one) or compile_lowered(one)
    )
    monkeypatch.setattr(compiling, "_compiled", type(compiling._compiled)())
    return modules


def compile_scale(layout="batch:data", **options):
    return nm.compile(scale, nm.spec([B, M]), mesh=nm.Mesh(data=2), layout=layout, **options)


def test_an_equal_program_is_compiled_once(compiled):
    steps = [compile_scale() for _ in range(3)]
    assert len(compiled) == 1
    states = [step.init(seed=0) for step in steps]
    assert len(compiled) == 2
    x = np.ones((8, 4), np.float32)
    for step, state in zip(steps, states, strict=True):
        weight = np.asarray(state["scale_of_test_compile"])
        np.testing.assert_array_equal(np.asarray(step(state, x)[1]), weight * x)


def test_another_layout_or_option_is_compiled_again(compiled):
    compile_scale()
    compile_scale("model:data")
    compile_scale(partitioner="shardy")
    assert len(compiled) == 3


def test_another_option_of_jax_or_its_environment_is_compiled_again(compiled, monkeypatch):
    compile_scale()
    effort = jax.config.jax_exec_time_optimization_effort
    jax.config.update("jax_exec_time_optimization_effort", effort - 0.5)
    try:
        compile_scale()
    finally:
        jax.config.update("jax_exec_time_optimization_effort", effort)
    monkeypatch.setenv("XLA_FLAGS", "")
    compile_scale()
    assert len(compiled) == 3


def test_another_kernel_is_compiled_again(compiled, monkeypatch):
    """It takes the place of a call when an Artifact is loaded, and is not in its module."""
    plan = nm.plan(nm.trace(make_step(), **SPECS), nm.Mesh(data=1))
    for kernels in (False, True):
        find_kernel = lambda name, options, reads, platforms, kernels=kernels: (
            by_matrices(options, reads)[name] if kernels else None
        )
        monkeypatch.setattr(prepare, "find_kernel", find_kernel)
        nm.Step(plan)
    assert len(compiled) == 2


def test_few_programs_are_kept(compiled, monkeypatch):
    monkeypatch.setattr(compiling, "MOST_COMPILED", 1)
    for layout in ("batch:data", "model:data", "batch:data"):
        compile_scale(layout)
    assert len(compiled) == 3 and len(compiling._compiled) == 1


@pytest.mark.parametrize("first", ["", "import jax"])
def test_a_fresh_process_logs_nothing(first):
    environment = {name: value for name, value in os.environ.items() if "TF_CPP" not in name}
    result = subprocess.run(
        [sys.executable, "-c", first + TINY], env=environment, capture_output=True, text=True
    )
    # TensorFlow for x86 is built with CUDA, and says that there is no driver.
    said = [line for line in result.stderr.splitlines() if "cuda" not in line]
    assert (result.returncode, result.stdout, said) == (0, "", [])


def test_what_tensorflow_logs_about_itself_is_dropped_and_nothing_else(tmp_path):
    logged = "I0000 oneDNN custom operations are on.\\nsomething is wrong\\n"
    (tmp_path / "tensorflow.py").write_text(f"import os\nos.write(2, b'{logged}')\n")
    code = "from namedmesh.ir.context import Context; print(Context().tf.__name__)"
    path = os.pathsep.join([str(tmp_path), os.path.dirname(os.path.dirname(nm.__file__))])
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (result.stdout, result.stderr) == ("tensorflow\n", "something is wrong\n")
