"""Compiling ahead of time, for CPU devices by the path that a TPU takes, and what goes wrong."""

# pyright: reportArgumentType=false, reportOptionalMemberAccess=false
# pyright: reportOptionalOperand=false, reportOptionalIterable=false

import dataclasses
import json
import os
import pathlib

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.aot import (
    Target,
    TargetReport,
    Torus,
    absent_devices,
    compilation,
    compile_for,
)
from namedmesh.aot.memory import find_origin, largest_buffers, read_exhaustion
from namedmesh.audit.audit import audit
from namedmesh.audit.hlo import parse_module, parse_type
from namedmesh.hardware.assignment import assign_devices, traffic_of
from namedmesh.runtime.compiling import compile_lowered, lower_step
from tests.aot.refusals import BRIEF, FULL
from tests.aot.stack import B, H, L, M


def test_memory_is_that_of_the_shards(artifact, found):
    shard = 4 * L.size * M.size * H.size // 4
    assert found.memory.weights == 2 * shard
    assert found.memory.state == 2 * shard
    assert found.memory.inputs == 4 * B.size * M.size // 2
    assert found.memory.activations == 4 * L.size * B.size * M.size // 2, "the carry of every layer"
    step = nm.runtime.Executable(artifact)
    assert found.peak_bytes == step.report.peak_bytes + step.report.code_bytes


def test_a_row_has_everything(found):
    row = json.loads(json.dumps(found.row()))
    expected = {
        "model": "stack",
        "target": "cpu:8",
        "cores": 8,
        "weights": 2048,
        "fits": True,
        "error": None,
        "hbm_bytes": None,
    }
    assert {key: row[key] for key in expected} == expected
    assert row["collectives_match_plan"] is True
    assert row["compile_seconds"] > 0 and row["peak_bytes"] == sum(row["memory"].values())


def test_flops_of_loops_are_those_of_every_iteration(artifact, found):
    assert found.loops == 2
    assert found.flops_per_core == artifact.flops / 8 > 2 * found.compiler_flops


def test_flops_without_loops_are_the_compilers():
    plain = nm.export(nm.trace(lambda x: nm.sin(x), nm.spec([B, M])), nm.Mesh(data=8), "batch:data")
    found = compile_for(plain, "cpu:8")
    assert found.loops == 0 and found.flops_per_core == (
        found.compiler_flops or found.program_flops
    )


def test_collectives_are_counted_with_their_iterations(artifact, found):
    rows = found.collectives()
    times = sum(one.times for one in artifact.collectives)
    assert sum(row.planned for row in rows) == sum(row.made for row in rows) == times
    planned_bytes = sum(one.total_bytes for one in artifact.collectives)
    assert sum(row.planned_bytes for row in rows) == planned_bytes
    assert found.row()["collectives"][0]["axes"] == list(rows[0].axes)


def test_compiled_collectives_run_as_often_as_planned_ones(found):
    """The compiler's own trip counts against the lengths of the program's loops."""
    assert [one.times for _, one in found.audit.matched] == [
        plan.times for plan, _ in found.audit.matched
    ]
    assert {plan.times for plan, _ in found.audit.matched} == {1, L.size}


def test_a_collective_in_another_precision_says_so(artifact, found):
    groups = {"model": "[2,4]<=[8]", "data": "[4,2]<=[2,4]T(1,0)"}
    lines = [
        f"  %r{i} = bf16[{one.elements}] all-gather(%x), replica_groups={groups[one.axes[0]]}, "
        f'metadata={{op_name="nm.{one.op}"}}'
        for i, one in enumerate(artifact.collectives)
        if one.axes in (("model",), ("data",))
    ]
    text = "\n".join(["HloModule m", "ENTRY %main () -> f32[] {", *lines, "}"])
    planned = [
        dataclasses.replace(one, kind="AllGather", times=1, reduction="")
        for one in artifact.collectives
    ]
    halved = audit(parse_module(text), artifact.mesh, planned, backend="tpu")
    assert halved.exact and halved.rules == {"float32 sent as bfloat16": len(planned)}
    changed = TargetReport(**{**vars(found), "audit": halved})
    rows = [row for row in changed.collectives() if row.made]
    assert rows and all(row.made_bytes * 2 == row.planned_bytes for row in rows)
    assert all(row.made_wire_bytes * 2 == row.planned_wire_bytes for row in rows)
    assert "bfloat16 for float32" in str(changed)
    assert changed.row()["rules"] == {"float32 sent as bfloat16": len(planned)}


def test_the_table_adds_up_what_goes_over_the_wire(artifact, found):
    """A device sends twice three of four shards of a sum over four devices."""
    sums = [one for one in artifact.collectives if one.axes == ("model",)]
    assert sums and all(one.kind == "AllReduce" for one in sums)
    (row,) = [row for row in found.collectives() if row.axes == ("model",)]
    assert row.made_wire_bytes == row.planned_wire_bytes == row.planned_bytes * 2 * 3 // 4
    assert found.row()["wire_bytes"] == sum(one.total_wire_bytes for one in artifact.collectives)
    assert "made on the wire" in str(found)


def test_the_table_says_what_a_core_holds(found):
    text = str(found)
    assert text.startswith(
        "stack on cpu:8, 8 cores, Mesh(data=2, model=4): compiles\n  a core holds\n    weights "
    )
    assert "  collectives as planned\n" in text
    assert "2,048 weights" in text and "(the program's count)" in text


@pytest.mark.parametrize("message", [BRIEF, FULL])
def test_too_little_memory_is_an_answer(artifact, monkeypatch, message):
    """The compiler gives up, but not before it has written down what it had."""
    text = compile_lowered(lower_step(artifact, nm.runtime.Executable(artifact).mesh)).as_text()

    def refuse(lowered, options=None):
        if options:
            (pathlib.Path(options["xla_dump_to"]) / "module.after_optimizations.txt").write_text(
                text
            )
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(compilation, "compile_lowered", refuse)
    found = compile_for(artifact, "cpu:8")
    assert not found.fits and found.hbm_bytes == int(15.48 * 2**30)
    assert found.row()["collectives_match_plan"] is None, "there is no program that could match"
    assert found.audit.exact
    if message is FULL:
        assert found.error == "out of memory by 4.5 GiB (20.0 GiB of 15.5 GiB)"
        assert found.buffers[0].origin.startswith("einsum.5")
    else:
        assert found.error == "out of memory by 6.8 GiB (22.3 GiB of 15.5 GiB)"
        assert any(
            "float32[layer=4" in one.origin and " at stack.py:" in one.origin
            for one in found.buffers
        )
    assert "does not fit" in str(found) and "what helps: dtype" in str(found)


def test_too_little_memory_is_an_answer_even_without_details(artifact, monkeypatch):
    def refuse(lowered, options=None):
        raise jax.errors.JaxRuntimeError(BRIEF)

    monkeypatch.setattr(compilation, "compile_lowered", refuse)
    found = compile_for(artifact, "cpu:8")
    assert found.error == "out of memory by 6.8 GiB (22.3 GiB of 15.5 GiB)"
    assert found.memory.weights == found.memory.state == 2048
    assert found.memory.total == found.peak_bytes == int(22.3 * 2**30)
    assert found.row()["collectives_match_plan"] is None
    assert {"w", "v"} <= {one.origin for one in found.buffers} and found.levers[0].startswith(
        "dtype"
    )


def test_what_the_compiler_does_not_know_is_an_error(artifact, monkeypatch):
    def refuse(lowered, options=None):
        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: custom call to foo")

    monkeypatch.setattr(compilation, "compile_lowered", refuse)
    with pytest.raises(
        nm.NamedMeshError,
        match=r"the compiler of cpu:8 refuses train\n  UNIMPLEMENTED: custom call to foo",
    ):
        compile_for(artifact, "cpu:8")


def test_text_that_jaxlib_cannot_make_is_what_the_compiler_dumped(artifact, monkeypatch):
    lowered = lower_step(artifact, nm.runtime.Executable(artifact).mesh)
    step = compile_lowered(lowered)
    wrote = [("module_0002.part.after_codegen", "part"), ("module_0001.jit.after_codegen", "whole")]
    wrote += [("module_0001.jit.after_optimizations", "without estimates")]

    def fake(lowered, options):
        for name, text in wrote:
            (pathlib.Path(options["xla_dump_to"]) / f"{name}.txt").write_text(text)
        return step

    def refuse(self):
        raise jax.errors.JaxRuntimeError("INTERNAL: async-update should have 1 operands but sees 3")

    monkeypatch.setattr(compilation, "compile_lowered", fake)
    read = lambda: compilation._compile_and_read(lowered, {}, dumps=True)[1]
    assert read() == step.as_text(), "it is as quick where it can be read"
    monkeypatch.setattr(jax.stages.Compiled, "as_text", refuse)
    assert read() == "whole"
    wrote.clear()
    with pytest.raises(jax.errors.JaxRuntimeError, match="but sees 3"):
        read()


def test_what_does_not_fit_is_compiled_once_where_modules_are_dumped(artifact, monkeypatch):
    lowered = lower_step(artifact, nm.runtime.Executable(artifact).mesh)
    tried = "HloModule tried, is_scheduled=true"

    def refuse(lowered, options):
        (pathlib.Path(options["xla_dump_to"]) / "module.after_optimizations.txt").write_text(tried)
        raise jax.errors.JaxRuntimeError(FULL)

    monkeypatch.setattr(compilation, "compile_lowered", refuse)
    step, text, error = compilation._compile_and_read(lowered, {}, dumps=True)
    assert step is None and text == tried and FULL in str(error)


def test_a_target_of_another_size_is_refused_with_one_that_fits(artifact):
    with pytest.raises(
        nm.NamedMeshError, match="train is planned for 8 devices, and tpu-v3:4x4 has 32"
    ) as caught:
        compile_for(artifact, "tpu-v3:4x4")
    assert caught.value.fix == "use --target tpu-v3:2x2, or plan it for a mesh of 32 devices"


def test_without_the_tpu_compiler_the_fix_is_told(artifact, monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    for name in absent_devices.ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, absent_devices.ENVIRONMENT[name]))
    monkeypatch.setattr(absent_devices.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        nm.NamedMeshError, match="needs the TPU compiler, and Python finds no libtpu here"
    ) as caught:
        compile_for(artifact, "tpu-v3:2x2")
    assert "pip install libtpu" in caught.value.fix and "TPU_LIBRARY_PATH" in caught.value.fix


def test_a_compiler_that_does_not_load_is_an_error(artifact, monkeypatch, tmp_path):
    for name in absent_devices.ENVIRONMENT:
        monkeypatch.setenv(name, os.environ.get(name, absent_devices.ENVIRONMENT[name]))

    def fail(**_):
        raise RuntimeError("cannot open shared object file")

    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    monkeypatch.setattr(absent_devices.topologies, "get_topology_desc", fail)
    with pytest.raises(
        nm.NamedMeshError, match="the TPU compiler does not start for target tpu-v3:2x2"
    ):
        compile_for(artifact, "tpu-v3:2x2")


def test_a_mesh_is_laid_over_the_torus_of_its_target(artifact):
    torus = Torus.of_target(Target.parse("tpu-v3:2x2"))
    traffic = traffic_of(artifact.collectives)
    chosen = assign_devices(artifact.mesh, torus, traffic)
    assert chosen.hops is not None and chosen.listed_hops is not None
    assert chosen.hops <= chosen.listed_hops
    fixed = artifact.with_device_assignment(range(7, -1, -1)).mesh
    assert assign_devices(fixed, torus, traffic).order == fixed.device_assignment
    assert assign_devices(artifact.mesh, None, traffic).order is None


def test_out_of_memory_numbers_are_exact(artifact):
    lack = read_exhaustion(FULL, artifact)
    assert lack is not None and np.isclose(lack.needed - lack.available, 4.52 * 2**30)


def test_of_all_that_a_loop_makes_the_buffer_holds_what_has_its_shape(artifact):
    loop = next(name for name in artifact.ops if name.startswith("scan."))
    op_name = f"jit(f)/namedmesh/nm.{loop}/while/XlaDynamicUpdateSlice"
    name = lambda shape: find_origin(op_name, parse_type(shape), artifact)
    assert name("f32[4,8,8]").startswith(
        "x_history float32[layer=4, batch=16/data, model=8] at stack.py:"
    )
    assert name("f32[8,8]").startswith("scan float32[batch=16/data, model=8]")
    assert name("f32[7]") == name("f32[8,8]"), "what has no shape known is the first"


def test_a_weight_that_is_gathered_is_not_named_after_what_reads_it():
    X, Y = nm.dims("x=8 y=24")
    step = lambda x: nm.einsum([x, nm.param("w", [X, Y])], [B, Y])
    resting = nm.export(
        nm.trace(step, nm.spec([B, X])), nm.Mesh(all=8), "batch:all", params="x:all"
    )
    (gather,) = resting.collectives
    op_name = f"jit(f)/namedmesh/nm.{gather.op}/XlaSharding"
    name = find_origin(op_name, parse_type("f32[8,24]"), resting)
    assert name.startswith("w, moved for step float32[batch=16/all, y=24] at ")


def test_values_of_a_combined_collective_are_told_apart(artifact):
    text = """
HloModule m, is_scheduled=true, entry_computation_layout={()->f32[]}

ENTRY %main () -> f32[] {
  %r = (f32[64,32]{1,0}, f32[4096]{0}) all-reduce(%a, %b), \
metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}
}
"""
    bare = dataclasses.replace(artifact, inputs=(), variables=())
    found = [
        (one.bytes, one.shape, one.origin) for one in largest_buffers(bare, parse_module(text))
    ]
    assert found == [
        (16384, "f32[4096]", "one of 2 in an all-reduce"),
        (8192, "f32[64,32]", "one of 2 in an all-reduce"),
    ]
