"""Hardware by name and from YAML: what is read, and what is said of what is not."""

import pytest

import namedmesh as nm
from namedmesh.hardware.chips import CHIPS
from namedmesh.hardware.hardware import EXAMPLE
from namedmesh.hardware.links import Host, Nodes, TorusSlice
from namedmesh.hardware.topology import Target, Torus
from namedmesh.training import device_peak_flops


@pytest.fixture
def parse(tmp_path):
    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return nm.Hardware.parse(path)

    return write


def test_the_example_is_read(parse):
    found = parse(EXAMPLE + "product_share: 0.8\nkernels: true\n")
    assert (found.name, found.flops["bfloat16"], found.memory_bytes) == ("my-gpu", 4e14, 80 * 10**9)
    assert found.network == Nodes(8, 200e9, 25e9, 0.0, 0.0, 0.0)
    assert (found.product_share, found.kernels) == (0.8, True)


def test_other_networks(parse):
    base = EXAMPLE.rpartition("network")[0]
    host = parse(base + "network: {kind: host, bandwidth: 1e9, start: 1e-5}")
    assert host.network == Host(1e9, 1e-5)
    torus = parse(base + "network: {kind: torus, generation: v5e, bandwidth: 50e9, latency: 1e-6}")
    assert torus.network == TorusSlice("v5e", None, 50e9, 1e-6, 0.0)


def test_a_path_as_text_and_a_cost(parse, tmp_path):
    parse(EXAMPLE)
    program = nm.trace(lambda x: nm.sum(x), x=nm.spec([nm.Dimension("a", 8)]))
    plan = nm.plan(program, nm.Mesh(data=8), "a:data")
    assert nm.cost(plan, str(tmp_path / "mine.yaml")).hardware.name == "my-gpu"


@pytest.mark.parametrize(
    ("change", "problem", "fix"),
    [
        (("vector_flops: 30e12\n", ""), "lacks vector_flops", "add vector_flops"),
        (("vector_flops", "vektor_flops"), "has vektor_flops", "did you mean 'vector_flops'"),
        (("3e12", "fast"), "memory_bandwidth is 'fast'", "such as 3e12"),
        (("3e12", "-3e12"), "memory_bandwidth is '-3e12'", "such as 3e12"),
        (("3e12", "0"), "memory_bandwidth is 0", "above 0"),
        (("float32", "float33"), "the dtype 'float33'", "did you mean 'float32'"),
        ((", float32: 200e12", ""), "no rate for float32", "for each dtype"),
        (
            ("{bfloat16: 400e12, float32: 200e12}", "400e12"),
            "no rate for float32",
            "for each dtype",
        ),
        (("kind: nodes", "kind: mesh"), "the network is", "give its kind"),
        (("inside: 200e9, ", ""), "the nodes network lacks inside", "add inside"),
        (("name: my-gpu", "name: 7"), "name is 7", "in quotes"),
        (("name: my-gpu", "kernels: 3\nname: my-gpu"), "kernels is 3", "true or false"),
        (("name: my-gpu", "memory_share: 2\nname: x"), "memory_share is 2", "at most 1"),
        (("name: my-gpu", "repeats: few\nname: x"), "repeats is 'few'", "use one of"),
        (("devices: 8", "devices: 8.5"), "devices is 8.5", "whole number"),
    ],
)
def test_mistakes_are_said_with_a_fix(parse, change, problem, fix):
    assert change[0] in EXAMPLE
    with pytest.raises(nm.NamedMeshError) as caught:
        parse(EXAMPLE.replace(change[0], change[1], 1))
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_what_is_not_yaml_or_not_there(parse, tmp_path):
    with pytest.raises(nm.NamedMeshError, match=r"is not YAML: .* line 1"):
        parse("name: [")
    with pytest.raises(nm.NamedMeshError, match="not a mapping"):
        parse("- a\n- b\n")
    with pytest.raises(nm.NamedMeshError, match="cannot read hardware file"):
        nm.Hardware.parse(tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("h20", "did you mean"),
        ("tpu-v9", "tpu-v"),
        ("gpu", "(or give the path of a YAML file)"),
        ("h20:8", "did you mean"),
        ("cpu:8", "did you mean 'cpu'?"),
    ],
)
def test_unknown_names_are_said(name, fix):
    with pytest.raises(nm.NamedMeshError) as caught:
        nm.Hardware.parse(name)
    assert fix in caught.value.fix


def test_published_figures():
    v3, h200 = nm.Hardware.parse("tpu-v3"), nm.Hardware.parse("h200")
    assert (v3.flops["bfloat16"], v3.memory_bandwidth) == (61.5e12, 450e9)
    assert v3.memory_bytes == 16 * 2**30
    assert v3.product_flops("float32", "highest") == pytest.approx(61.5e12 / 6)
    assert h200.product_flops("float32") == 494.7e12
    assert h200.product_flops("float32", "highest") == pytest.approx(66.9e12)


@pytest.mark.parametrize("name", CHIPS)
def test_cost_aot_and_throughput_agree_on_every_chip(name):
    chip, hardware = CHIPS[name], nm.Hardware.parse(name)
    assert hardware.flops["bfloat16"] * chip.devices == chip.tera["bfloat16"] * 1e12
    assert hardware.memory_bytes * chip.devices == chip.memory
    for kind in chip.kinds:
        assert device_peak_flops(kind.upper()) == hardware.flops["bfloat16"]
    if chip.family == "tpu":
        target = Target.parse(f"{name}:{'x'.join(['4'] * chip.dimensions)}")
        assert target.cores == 4**chip.dimensions * chip.devices
        torus = Torus.of_target(target)
        assert torus is not None and len(torus.places) == target.cores
        assert isinstance(hardware.network, TorusSlice)
        assert hardware.network.target(nm.Mesh(all=target.cores)) == target
