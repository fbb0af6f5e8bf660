"""Calibration: figures from timings, and the command on CPU devices."""

import dataclasses

import jax
import pytest

import namedmesh as nm
from namedmesh.calibration import benches
from namedmesh.calibration.benches import Bench, Timing
from namedmesh.calibration.calibrate import calibrate
from namedmesh.cli.main import main
from namedmesh.errors.source import Source
from namedmesh.hardware.hardware import write_hardware
from namedmesh.hardware.links import Nodes
from namedmesh.records.collective import KINDS, Collective

H200 = nm.Hardware.parse("h200")


@dataclasses.dataclass
class Device:
    """What calibration asks of a device of jax."""

    device_kind: str = "NVIDIA H200"
    platform: str = "gpu"

    def memory_stats(self):
        return {"bytes_limit": 150 * 10**9}


class Simulated(Bench):
    """Devices whose true figures are known: three quarters of the peaks, and slow links."""

    network = Nodes(8, 3e11, 50e9, 1e-6, 5e-6, start=9e-6)

    def __init__(self, devices):
        self.count, self.platform, self.small = len(devices), "gpu", False

    def products(self, dtype, precision):
        rate = 0.75 * H200.product_flops(dtype, precision)
        yield from (Timing("", size / rate, flops=size) for size in (1e12, 7e12))

    def passes(self):
        yield Timing("", 0.002, bytes=0.002 * 0.9 * H200.memory_bandwidth)

    def launch(self):
        return Timing("", 3e-6)

    def arithmetic(self):
        return Timing("", 1.0, other_flops=55e12)

    def attention(self):
        for products, others, rows in ((4e12, 2e10, 1e6), (4e12, 8e10, 3e6), (9e12, 3e10, 1e7)):
            peak = H200.product_flops("bfloat16")
            seconds = products / (0.6 * peak) + others / (0.05 * H200.vector_flops) + rows * 2e-10
            yield Timing("", 3e-6 + seconds, products, others, rows=rows)

    def collectives(self):
        mesh = nm.Mesh(all=self.count)
        for size in (2**12, 2**20, 2**28):
            for kind in KINDS:
                one = Collective(
                    kind, ("all",), size // 4, "float32", size, 1, "", "", "forward",
                    Source("", 0), self.count,
                )  # fmt: skip
                yield kind, Timing("", self.network.seconds(one, mesh, {}), bytes=size)


def test_the_figures_of_known_devices_are_found(monkeypatch):
    monkeypatch.setattr("namedmesh.calibration.calibrate.Bench", Simulated)
    measured, timings = calibrate([Device()] * 8, lambda _: None)
    assert measured.product_share == pytest.approx(0.75)
    assert measured.product_flops("bfloat16") == pytest.approx(H200.product_flops("bfloat16"))
    assert measured.product_flops("float32", "highest") == pytest.approx(66.9e12)
    assert measured.memory_share == pytest.approx(0.9)
    assert measured.kernel_product_share == pytest.approx(0.6, rel=1e-3)
    assert measured.kernel_share == pytest.approx(0.05, rel=1e-3)
    assert measured.kernel_row == pytest.approx(2e-10, rel=1e-3)
    assert (measured.start, measured.memory_bytes) == (3e-6, 150 * 10**9)
    assert isinstance(measured.network, Nodes)
    assert measured.network.start == pytest.approx(9e-6, rel=1e-3)
    assert measured.network.inside == pytest.approx(3e11, rel=1e-3)
    assert measured.product_flops("float8_e5m2") == pytest.approx(1978.9e12)  # as published
    assert len(timings) == 2 * (len(H200.flops) - 2) + 3 + 3 + 15


def test_devices_nobody_has_published_have_what_was_measured(monkeypatch):
    monkeypatch.setattr("namedmesh.calibration.calibrate.Bench", Simulated)
    measured, _ = calibrate([Device("NVIDIA X1")], lambda _: None)
    assert measured.product_share == measured.memory_share == 1.0
    assert measured.product_flops("bfloat16") == pytest.approx(0.75 * 989.4e12)
    assert measured.memory_bandwidth == pytest.approx(0.9 * 4.8e12)
    assert measured.vector_flops == pytest.approx(55e12)


def test_a_written_file_is_read_as_it_was(tmp_path):
    for name in ("h200", "tpu-v3", "cpu"):
        before = dataclasses.replace(nm.Hardware.parse(name), start=2.5e-6, product_share=0.5)
        path = tmp_path / f"{name}.yaml"
        path.write_text(write_hardware(before))
        after = nm.Hardware.parse(path)
        for field in dataclasses.fields(before):
            old, new = getattr(before, field.name), getattr(after, field.name)
            rounded = pytest.approx(old, rel=1e-4) if isinstance(old, (dict, float)) else old
            assert new == rounded, field


def test_the_command_measures_these_devices(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benches, "PRODUCTS", ((512, 512, 512),))
    monkeypatch.setattr(benches, "LAUNCHES", 8)
    monkeypatch.setattr(benches, "SIZES", (2**10, 2**14))
    monkeypatch.setattr(benches, "ROWS", (64, 64))
    monkeypatch.setattr(benches, "SECONDS", 0.0)
    path = tmp_path / "mine.yaml"
    assert main(["calibrate", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"{len(jax.devices())} x cpu" in said and "AllToAll of 16384 bytes over 8" in said
    B = nm.Dimension("batch", 64)
    plan = nm.plan(nm.trace(lambda x: nm.sum(x), nm.spec([B])), nm.Mesh(data=8), "batch:data")
    assert 0 < nm.cost(plan, path).seconds < 10


def test_the_name_must_be_one_of_a_hardware_file(capsys):
    assert main(["calibrate", "mine.txt"]) == 2
    assert "'mine.txt' is not the name of a hardware file" in capsys.readouterr().err
