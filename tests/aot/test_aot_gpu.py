"""Compiling for nodes of GPUs that are not here, with XLA's own compiler."""

import functools
import os
import subprocess
import sys

import jax
import pytest

import namedmesh as nm
from namedmesh.aot import Target, compilation, compile_for, toolkit
from namedmesh.aot.absent_devices import devices_of
from namedmesh.aot.gpu_description import describe_gpu
from namedmesh.audit.backend_rules import UNROLLED
from namedmesh.cli.main import main
from namedmesh.hardware.chips import GPUS
from namedmesh.hardware.hardware import network_of
from namedmesh.hardware.leaving import advise, list_links
from namedmesh.jax_internals import find_gpu_compiler
from namedmesh.processes.devices import arrange_devices
from namedmesh.runtime import compiling
from tests.aot import refusals, stack

compiler = pytest.mark.skipif(
    find_gpu_compiler() is None,
    reason="XLA's GPU compiler is not here: pip install 'namedmesh[gpu-aot]' (Linux)",
)
B, M, H, L, E, C, A = nm.dims(
    "batch=128 model=64 hidden=256 layer=4 expert=32 capacity=8 accumulation=4"
)


def described(name):
    """The multiprocessors of a GPU."""
    own = GPUS[name].multiprocessors
    assert own is not None
    return own


def dense(x):
    """Layers with weights of bfloat16 in a loop, gradients accumulated in float32."""

    def loss(x):
        def layer(h, _):
            w, v = nm.param("w", [M, H]), nm.param("v", [H, M])
            wide = nm.relu(nm.einsum([h, nm.cast(w, "bfloat16")], [B, H]))
            return h + nm.einsum([wide, nm.cast(v, "bfloat16")], [B, M]), None

        y, _ = nm.scan(layer, nm.cast(x, "bfloat16"), over=L, stack=True, remat="full")
        return nm.mean(nm.square(nm.cast(y, "float32")))

    total, _ = nm.scan(lambda total, x: (total + loss(x), None), nm.zeros([]), x, over=A)
    for name, gradient in nm.grad(total).items():
        nm.assign(nm.parameters()[name], nm.parameters()[name] - gradient * 0.1)
    return total


def mixture(x):
    """Experts of their own devices, tokens sent there and back."""
    gate, wi = nm.param("gate", [M, E], whole=[E]), nm.param("wi", [E, M, H])
    wo = nm.param("wo", [E, H, M])
    routes = nm.softmax(nm.einsum([x, gate], [B, E]), over=E)
    sent = nm.einsum([routes, x], [E, B, M])
    inside = nm.relu(nm.einsum([nm.reshard(sent, E), wi], [E, B, H]))
    back = nm.reshard(nm.einsum([inside, wo], [E, B, M]), B)
    loss = nm.mean(nm.square(nm.einsum([routes, back], [B, M])))
    for name, gradient in nm.grad(loss).items():
        nm.assign(nm.parameters()[name], nm.parameters()[name] - gradient * 0.1)
    return loss


@compiler
@pytest.mark.parametrize(
    ("function", "leading", "mesh", "layout", "params", "target", "kinds"),
    [
        (stack.train, [], nm.Mesh(data=4, tensor=8), "batch:data, hidden:tensor", None, "h100:4x8",
         {"AllReduce"}),
        (dense, [A], nm.Mesh(data=16, tensor=8), "batch:data, hidden:tensor", "model:data",
         "b200:16x8", {"AllGather", "AllReduce", "ReduceScatter"}),
        (mixture, [], nm.Mesh(all=32), "batch:all, expert:all", None, "gb200:1x32",
         {"AllReduce", "AllToAll"}),
    ],
)  # fmt: skip
def test_steps_are_compiled_as_planned(function, leading, mesh, layout, params, target, kinds):
    sizes = [*leading, *((stack.B, stack.M) if function is stack.train else (B, M))]
    artifact = nm.export(nm.trace(function, x=nm.spec(sizes)), mesh, layout, params)
    report = compile_for(artifact, target)
    assert report.audit is not None and report.audit.exact, report.audit
    assert {plan.kind for plan, _ in report.audit.matched} == kinds
    assert report.fits and report.memory is not None
    held = sum(spec.bytes_per_device(mesh) for spec in artifact.variables)
    assert report.memory.weights + report.memory.state == held
    assert report.hbm_bytes == described(target.partition(":")[0]).memory
    assert "GPUs" in str(report) and "NVLink" in str(report)


@compiler
def test_weights_gathered_ahead_come_beside_the_layer_before():
    batch, model, hidden = nm.dims("batch=262144 model=4096 hidden=14336")
    layers = nm.Dimension("layer", 16)

    def train(x):
        def layer(h, _):
            w, v = nm.param("w", [model, hidden]), nm.param("v", [hidden, model])
            wide = nm.relu(nm.einsum([h, nm.cast(w, "bfloat16")], [batch, hidden]))
            return h + nm.einsum([wide, nm.cast(v, "bfloat16")], [batch, model]), None

        y, _ = nm.scan(layer, nm.cast(x, "bfloat16"), over=layers, stack=True, remat="full")
        for name, gradient in nm.grad(nm.mean(nm.square(nm.cast(y, "float32")))).items():
            nm.assign(nm.parameters()[name], nm.parameters()[name] - gradient * 0.1)

    program, mesh = nm.trace(train, x=nm.spec([batch, model])), nm.Mesh(data=8, tensor=8)
    exposed = []
    for params in ("model:data", "model:data, prefetch"):
        artifact = nm.export(program, mesh, "batch:data, hidden:tensor", params)
        report = compile_for(artifact, "h200:8x8")
        assert report.audit is not None and report.audit.exact, report.audit
        assert report.timeline is not None
        exposed.append(report.timeline.exposed_seconds)
    assert exposed[1] < 0.7 * exposed[0]


@compiler
def test_options_of_the_compiler_change_what_is_made(tmp_path, capsys):
    program = nm.trace(dense, x=nm.spec([A, B, M]))
    artifact = nm.export(program, nm.Mesh(data=8), "batch:data", "model:data")
    artifact.save(tmp_path / "step.nmesh")
    command = ["aot", str(tmp_path / "step.nmesh"), "--target", "h100:1x8", "--xla"]
    assert main([*command, "xla_gpu_enable_pipelined_all_gather=true"]) == 0
    assert UNROLLED.name in capsys.readouterr().out
    assert main([*command, "xla_gpu_no_such_option=1"]) == 2
    said = capsys.readouterr().err
    assert "xla_gpu_no_such_option" in said and "compile without" in said
    assert main([*command, "pipelined"]) == 2
    assert "expected xla_NAME=VALUE, not 'pipelined'" in capsys.readouterr().err


@compiler
def test_a_step_that_does_not_fit_says_by_how_much():
    wide, other = nm.dims("wide=262144 other=262144")
    program = nm.trace(
        lambda x: nm.sum(nm.einsum([x, nm.param("w", [wide, other])], [other])), x=nm.spec([wide])
    )
    report = compile_for(nm.export(program, nm.Mesh(data=2), "other:data"), "h100:1x2")
    assert not report.fits and report.lack is not None
    assert report.lack.available == described("h100").memory
    assert report.lack.needed > 2**18 * 2**17 * 4
    assert "out of memory by" in str(report)


@compiler
@pytest.mark.parametrize("text", ["gb200:1x6", "gb200:2x72", "h100:3x5"])
def test_a_node_has_all_of_its_gpus(text):
    target = Target.parse(text)
    assert len(devices_of(target)) == target.cores


def test_without_the_compiler_the_message_says_what_to_install(monkeypatch, artifact):
    from namedmesh.aot import absent_devices

    monkeypatch.setattr(absent_devices, "find_gpu_compiler", lambda: None)
    absent_devices._gpu_devices.cache_clear()
    with pytest.raises(nm.NamedMeshError, match=r"(?s)h100:1x8 .*pip install 'namedmesh\[gpu-aot"):
        compile_for(artifact, "h100:1x8")


@compiler
def test_jax_starts_without_a_word_about_the_compiler(tmp_path):
    code = "import namedmesh, jax; print(jax.devices()[0].platform)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("cpu\n", "")


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_is_described_by_its_figures(name):
    chip, own = GPUS[name], described(name)
    text = describe_gpu(chip)
    assert text.count("{") == text.count("}")
    for word in (own.kind, f"core_count: {own.count}", f"device_memory_size: {own.memory}"):
        assert word in text
    # Four units of matrix products in each multiprocessor make the published rate.
    made = 4 * 2 * own.products * own.count * own.product_clock / 1e3
    assert made == pytest.approx(chip.tera["bfloat16"], rel=0.06)


def test_links_are_counted_by_axes_and_the_better_order_is_named():
    layout = "batch:data, hidden:tensor"

    def step(x):
        wide = nm.einsum([x, nm.param("w", [M, H])], [B, H])
        return nm.sum(nm.square(nm.einsum([wide, nm.param("v", [H, M])], [B, M])))

    planned = nm.trace(step, x=nm.spec([B, M]))
    inner = nm.export(planned, nm.Mesh(data=4, tensor=8), layout)
    network = network_of(Target.parse("h100:4x8"))
    rows = {row.axes: row for row in list_links(inner.collectives, inner.mesh, network)}
    # The sum over tensor is of [batch / 4, model] in float32, in two passes of 7 of 8 parts.
    assert rows["tensor",].wire_bytes == 2 * 7 * (128 // 4) * 64 * 4 // 8
    assert rows["tensor",].link == "NVLink" and rows["tensor",].leaving_bytes == 0
    # That over data is of one number, which each of a node's 8 GPUs sends in two passes.
    assert rows["data",].leaving_bytes == 2 * 8 * 4 * 3 // 4
    assert advise(inner.collectives, inner.mesh, network) is None
    outer = nm.export(planned, nm.Mesh(tensor=8, data=4), layout)
    advice = advise(outer.collectives, outer.mesh, network) or ""
    assert "in the order of Mesh(data=4, tensor=8): " in advice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100:4x16", r"NVLink joins at most 8 GPUs of h100\n.*h100:8x8"),
        ("h100:2x2x2", "nodes of h100 have 2 sizes"),
        ("h10:2x8", "there is no chip 'h10'\n.*did you mean.*mine.txtpb:32x8"),
        ("v5e:16x16", "there is no chip 'v5e'\n.*did you mean 'tpu-v5e'"),
        ("mi300:32x8", "there is no compiler for 'mi300'\n.*ROCm"),
        ("h100:2x8:2", "cannot read"),
    ],
)
def test_what_is_no_cluster_is_refused(text, message):
    with pytest.raises(nm.NamedMeshError, match=f"(?s){message}"):
        Target.parse(text)


def test_one_number_is_one_node():
    assert Target.parse("h100:8") == Target.parse("h100:1x8")
    assert Target.parse("gb200:2x72").cores == 144


@pytest.fixture
def own_file(tmp_path):
    def write(*changes):
        text = describe_gpu(GPUS["h100"])
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        path = tmp_path / "mine.txtpb"
        path.write_text(f"# An H100, or nearly.\n{text}")
        return str(path)

    return write


@compiler
def test_a_file_describes_a_gpu(own_file):
    path = own_file(("device_memory_size: 84942979072", "device_memory_size: 100000"))
    program = nm.trace(stack.train, x=nm.spec([stack.B, stack.M]))
    artifact = nm.export(program, nm.Mesh(data=4, model=4), "batch:data, hidden:model")
    small, known = (compile_for(artifact, f"{name}:1x16") for name in (path, "gb200"))
    assert small.target == f"{path}:1x16" and small.hbm_bytes == 100000 and known.fits
    assert small.audit is not None and small.audit.exact
    assert "16 GPUs" in str(small) and "NVLink" in str(small)


@compiler
def test_what_the_compiler_cannot_read_is_named(own_file, artifact):
    path = own_file(("core_count", "colour: 7 core_count"))
    with pytest.raises(nm.NamedMeshError, match=r'(?s)mine.txtpb:1x8.*has no field named "colour"'):
        compile_for(artifact, f"{path}:1x8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("threads_per_warp: 32", ""), "lacks a number above 0 for threads_per_warp"),
        (("core_count: 132", "core_count: many"), "lacks a number above 0 for core_count"),
        (("gpu_device_info {", "gpu_device_info"), "its braces do not match"),
        (("gpu_device_info", "device_info"), "it has no gpu_device_info"),
        (("cuda_compute", "rocm_compute"), 'no cuda_compute_capability: it is for "CUDA"'),
    ],
)
def test_files_that_describe_no_gpu_are_refused(own_file, change, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        Target.parse(f"{own_file(change)}:2x8")


def test_a_file_is_opened_as_every_other(own_file, tmp_path):
    target = Target.parse(f"{own_file()}:8")
    assert target == Target.parse(f"{own_file()}:1x8") and target.cores == 8
    assert f"--target {tmp_path}/mine.txtpb:4x8," in target.suggest(32)
    with pytest.raises(nm.NamedMeshError, match=r"cannot read GPU file .*No such file"):
        Target.parse(f"{tmp_path}/other.txtpb:2x8")
    os.mkfifo(tmp_path / "pipe.txtpb")
    with pytest.raises(nm.NamedMeshError, match="it is not a file"):
        Target.parse(f"{tmp_path}/pipe.txtpb:2x8")
    (tmp_path / "huge.txtpb").write_text(" " * (2**20 + 1))
    with pytest.raises(nm.NamedMeshError, match="more than"):
        Target.parse(f"{tmp_path}/huge.txtpb:2x8")
    (tmp_path / "binary.txtpb").write_bytes(b"\xff\x00")
    with pytest.raises(nm.NamedMeshError, match="is not text"):
        Target.parse(f"{tmp_path}/binary.txtpb:2x8")
    with pytest.raises(nm.NamedMeshError, match=r"(?s)mine.yaml.*a YAML file is for nm.cost"):
        Target.parse("mine.yaml:2x8")


@compiler
def test_kernels_are_lowered_for_the_gpus_of_the_target(monkeypatch):
    kinds, prepare = [], compiling.prepare_module

    def record(*arguments, present):
        kinds.append(jax.sharding.get_abstract_mesh().abstract_device)
        assert not present
        prepare(*arguments, present=present)

    monkeypatch.setattr(compiling, "prepare_module", record)
    artifact = nm.export(nm.trace(lambda x: x * 2.0, nm.spec([B])), nm.Mesh(data=8), "batch:data")
    devices = devices_of(Target.parse("b200:1x8"))
    compiling.lower_step(artifact, arrange_devices(devices, artifact.mesh))
    assert [(one.device_kind, one.platform) for one in kinds] == [(described("b200").kind, "gpu")]


@compiler
def test_compiling_needs_no_cuda_toolkit(tmp_path, monkeypatch):
    files, log = toolkit._FILES, tmp_path / "log"
    assembler = files["bin/ptxas"].replace("\n", f'\necho "$@" >> {log}\n', 1)
    monkeypatch.setattr(toolkit, "_FILES", {**files, "bin/ptxas": assembler})
    make = functools.cache(toolkit._make_toolkit.__wrapped__)
    monkeypatch.setattr(toolkit, "_make_toolkit", make)
    program = nm.trace(lambda x: nm.tanh(x), nm.spec([B]))  # tanh is a function of libdevice
    artifact = nm.export(program, nm.Mesh(data=8), "batch:data")
    assert compile_for(artifact, "h100:1x8").fits
    # XLA took this assembler, not one of the machine.
    assert "-arch=sm_90a" in log.read_text()


@compiler
def test_a_step_that_is_refused_is_dumped_with_the_same_toolkit(monkeypatch):
    tries = []

    def refuse(lowered, options):
        tries.append(options)
        raise RuntimeError(refusals.BRIEF)

    monkeypatch.setattr(compilation, "compile_lowered", refuse)
    program = nm.trace(lambda x: nm.exp(x), x=nm.spec([B]))
    report = compile_for(nm.export(program, nm.Mesh(data=8), "batch:data"), "h100:1x8")
    assert not report.fits and report.audit is None
    first, dumping = tries
    assert "xla_gpu_cuda_data_dir" in first and first.items() <= dumping.items()
