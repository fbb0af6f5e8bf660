"""Hardware: FLOP/s, memory and links of one kind of device, by name or from a YAML file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from namedmesh.display.html import html_block, html_table
from namedmesh.display.text import human
from namedmesh.errors.errors import (
    NamedMeshError,
    check_text,
    did_you_mean,
    join_names,
    suggest_names,
)
from namedmesh.errors.mistakes import Explained
from namedmesh.files import check_path, parse_yaml, read_file
from namedmesh.hardware.chips import CHIPS, TPUS, Chip
from namedmesh.hardware.links import Host, Network, Nodes, TorusSlice
from namedmesh.hardware.topology import Target
from namedmesh.ir.tensor import FLOATS, FLOATS8

LARGEST_FILE = 2**16


@dataclass(frozen=True, eq=False, repr=False)
class Hardware(Explained, methods=False):
    """One kind of device and its links.

    Attributes:
        name: Its name.
        flops: FLOP/s of matrix products by the dtype of operands; others count as float32.
        vector_flops: FLOP/s of everything else.
        memory_bytes: The size of a device's memory.
        memory_bandwidth: Bytes a second that a device reads and writes.
        network: The links between devices.
        product_share: The share of `flops` that matrix products reach.
        kernel_share: The share of `vector_flops` that kernels reach beside their products.
        kernel_product_share: The share of `flops` that products inside kernels reach, counting
            what masks forbid, which kernels leave out; 0 for `product_share`.
        kernel_row: Seconds that a kernel of attention takes besides for each row of queries, which
            begins, ends, and has a tile that the mask cuts; its backward pass takes 2.5 as long.
        memory_share: The share of `memory_bandwidth` that ops reach.
        overlap: The share of collectives of weights and their gradients that ops hide: weights
            can be gathered ahead of their layer, and gradients added up behind the next one.
        product_overlap: The share of other AllGathers, AllReduces and ReduceScatters that the
            products beside them hide; the rest waits for its operand, and its reader for it.
        start: Seconds that an op takes before it computes.
        fuses_products: Whether the compiler fuses elementwise ops into the operands and the
            epilogue of matrix products.
        fuses_relu: Whether it fuses a relu into the epilogue.
        merges_sums: Whether it fuses sums over the same dimensions that read the same tensor.
        rounds_products: Whether products round float32 operands to bfloat16 at default precision.
        repeats: Elementwise functions that it recomputes for each reader rather than write their
            result: "all", "cheap" (no exponentials and the like) or "none".
        widens: Whether dtypes narrower than float32 are computed in float32.
        kernels: Whether kernels are chosen where named ops offer them.
        kernel_tile: What numbers of queries and keys are multiples of where kernels of attention
            are chosen; if it is not 1, they are for bfloat16 alone.
        shared: Whether all devices of a mesh share these figures, as those of one host do.
        memory_known: Whether these rules tell what its compiler reserves; of CPUs they do not.

    Example:
        >>> import namedmesh as nm
        >>> nm.Hardware.parse("h200")
        Hardware('h200': 989.4 TFLOP/s bfloat16, 131.3 GiB at 4800 GB/s, Nodes)
    """

    name: str
    flops: Mapping[str, float]
    vector_flops: float
    memory_bytes: int
    memory_bandwidth: float
    network: Network
    product_share: float = 1.0
    kernel_share: float = 1.0
    kernel_product_share: float = 0.0
    kernel_row: float = 0.0
    memory_share: float = 1.0
    overlap: float = 0.7
    product_overlap: float = 0.0
    start: float = 0.0
    fuses_products: bool = False
    fuses_relu: bool = False
    merges_sums: bool = False
    rounds_products: bool = False
    repeats: str = "all"
    widens: bool = False
    kernels: bool = False
    kernel_tile: int = 1
    shared: bool = False
    memory_known: bool = True

    @classmethod
    def parse(cls, text: str | os.PathLike) -> Hardware:
        """Find hardware by name, or read it from a file.

        Args:
            text: `tpu-v3` or another generation, `tpu-v3:4x4` for a slice of it, `tpu-v5e:4x4:2`
                for two; `h100` or another GPU, `h100:32x8` for 32 nodes of 8; `cpu`, or the path
                of a YAML file; or the kind of a device as jax names it, `NVIDIA H200`.

        Returns:
            The hardware.

        Example:
            >>> import namedmesh as nm
            >>> nm.Hardware.parse("tpu-v3:4x4").network.shape
            (4, 4)
            >>> nm.Hardware.parse("h100:32x8").network.nodes
            32
        """
        if isinstance(text, os.PathLike) or str(text).endswith((".yaml", ".yml")):
            return _read_hardware(text)
        name, colon, _ = check_text(text, "hardware", "tpu-v3").partition(":")
        if name != name.lower():  # as jax names a kind of device
            kinds = {kind: one for one, chip in CHIPS.items() for kind in chip.kinds}
            name = next((kinds[kind] for kind in kinds if kind in name.lower()), name)
        chip = CHIPS.get(name)
        if chip is None or (colon and chip.family == "cpu"):
            raise NamedMeshError(
                f"there is no hardware {text!r}",
                fix=f"{did_you_mean(name, CHIPS)} (or give the path of a YAML file)",
            )
        return cls(
            text,
            {dtype: rate * 1e12 / chip.devices for dtype, rate in chip.rates.items()},
            vector_flops=chip.vector_tera * 1e12 / chip.devices,
            memory_bytes=chip.memory // chip.devices,
            memory_bandwidth=chip.bandwidth / chip.devices,
            network=network_of(Target.parse(text)) if colon else _any_network(name, chip),
            **_COMPILERS[chip.family],
        )

    def divide(self, devices: int) -> Hardware:
        """Return one device's share, where these are the figures of all devices together.

        Args:
            devices: How many devices the mesh has.

        Returns:
            This hardware, or its share for one device.
        """
        if not self.shared or devices == 1:
            return self
        return dataclasses.replace(
            self,
            flops={dtype: rate / devices for dtype, rate in self.flops.items()},
            vector_flops=self.vector_flops / devices,
            memory_bandwidth=self.memory_bandwidth / devices,
            start=self.start * devices,
            shared=False,
        )

    def product_flops(self, dtype: str, precision: str = "default") -> float:
        """Return the peak FLOP/s of products of a dtype.

        Args:
            dtype: The dtype of the operands.
            precision: `default`, or `high` or `highest`, at which float32 is more exact.

        Returns:
            The rate.
        """
        usual = "bfloat16" if dtype in FLOATS8 else "float32"
        known = (self.flops.get(name) for name in (f"{dtype} {precision}", dtype, usual))
        return next(filter(None, known), self.flops["float32"])

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        rate = self.product_flops("bfloat16") / 1e12
        memory = f"{human(self.memory_bytes)} at {self.memory_bandwidth / 1e9:g} GB/s"
        network = type(self.network).__name__
        return f"Hardware({self.name!r}: {rate:g} TFLOP/s bfloat16, {memory}, {network})"

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{value:g}" if isinstance(value, float) else str(value))
            for name, value in vars(self).items()
        ]
        return html_block(f"hardware {self.name}", html_table(("figure", "value"), rows))


# What each compiler fuses, and the shares of peak rates that programs reach. Those of GPUs are
# fitted to profiles of an H200; those of TPUs are assumed: no kernel of ours ran there yet. Other
# systems' kernels reach the whole peak, counting all pairs, in what benchmarks/times predicts best
# of published steps (a half of it, counting what a causal mask allows); ours are given less.
_COMPILERS: dict[str, dict[str, Any]] = {
    "tpu": dict(
        product_share=0.85, memory_share=0.85, start=1e-6, product_overlap=0.5,
        fuses_products=True, rounds_products=True, repeats="cheap", kernels=True,
        kernel_product_share=0.6, kernel_tile=256,
    ),
    "gpu": dict(
        product_share=0.82, kernel_share=0.056, memory_share=0.85, start=2e-6,
        fuses_relu=True, merges_sums=True, kernels=True,
    ),
    "cpu": dict(
        overlap=0.0, start=5e-6, repeats="none", widens=True, shared=True, memory_known=False
    ),
}  # fmt: skip


def network_of(target: Target) -> Network:
    """Return the links of a target's nodes or slices."""
    network = _any_network(target.generation or "cpu", target.chip)
    if isinstance(network, TorusSlice):
        slices = target.slices if target.slices > 1 else 0  # of one, the mesh may have several
        return dataclasses.replace(network, shape=target.shape, slices=slices)
    if isinstance(network, Nodes):
        nodes, devices = target.shape
        return dataclasses.replace(network, nodes=nodes, devices=devices)
    return network


def _any_network(name: str, chip: Chip) -> Network:
    """Return the links of a chip; latencies are assumed, those of CPUs measured."""
    if chip.family == "tpu":
        generation = name.removeprefix("tpu-")
        return TorusSlice(generation, None, chip.link, 1e-6, 2e-6, chip.across, 2e-5)
    if chip.family == "gpu":
        return Nodes(chip.node, chip.link, chip.across, 1e-6, 5e-6, 5e-6)
    # gloo took 0.2 and 0.6 ms for sums of 4 bytes over two and over four processes.
    return Host(chip.link, 20e-6, chip.across, 4e-4)


_NETWORKS: dict[str, type[Any]] = {"nodes": Nodes, "torus": TorusSlice, "host": Host}
_WORDS = {"repeats": ("all", "cheap", "none"), "generation": tuple(TPUS)}
EXAMPLE = """\
name: my-gpu
flops: {bfloat16: 400e12, float32: 200e12}
vector_flops: 30e12
memory_bytes: 80e9
memory_bandwidth: 3e12
network: {kind: nodes, devices: 8, inside: 200e9, across: 25e9}
"""


def write_hardware(hardware: Hardware) -> str:
    """Write hardware as the YAML that files have, without what is as by default."""
    kinds = {cls: kind for kind, cls in _NETWORKS.items()}

    def write(value: Any) -> str:
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key}: {write(one)}' for key, one in value.items())}}}"
        if isinstance(value, float):
            return f"{value:.5g}"
        return json.dumps(value)

    def fields(value: Any) -> dict[str, Any]:
        known = ((one, getattr(value, one.name)) for one in dataclasses.fields(value))
        return {one.name: own for one, own in known if own != one.default and own is not None}

    network = {"kind": kinds[type(hardware.network)], **fields(hardware.network)}
    lines = {**fields(hardware), "network": network}
    return "".join(f"{name}: {write(value)}\n" for name, value in lines.items())


def _read_hardware(path: str | os.PathLike) -> Hardware:
    """Read hardware from a YAML file."""
    name = check_path(path, "the file of the hardware")
    data, file = read_file(name, "hardware file", LARGEST_FILE), f"hardware file {name!r}"
    _, fields = parse_yaml(data, file, "write lines such as 'memory_bandwidth: 3e12'")
    return Hardware(**_read_fields(file, Hardware, fields))


def _read_fields(file: str, cls: type, fields: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a file has them."""
    if not isinstance(fields, Mapping):
        raise NamedMeshError(
            f"{file} is not a mapping: {repr(fields)[:200]}", fix=f"write\n{EXAMPLE}"
        )
    known = {one.name: one for one in dataclasses.fields(cls) if one.name != "shape"}
    required = [name for name, one in known.items() if one.default is dataclasses.MISSING]
    unknown = [str(key) for key in fields if key not in known]
    missing = [name for name in required if name not in fields]
    if unknown:
        raise NamedMeshError(
            f"{file} has {join_names(unknown)[:200]}", fix=suggest_names(unknown, known)
        )
    if missing:
        raise NamedMeshError(f"{file} lacks {join_names(missing)}", fix=f"add {missing[0]}")
    return {key: _read_field(file, key, known[key].type, value) for key, value in fields.items()}


def _read_field(file: str, key: str, kind: Any, value: Any) -> Any:
    """Return one entry as its field has it."""
    if key == "flops":
        return _read_rates(file, value)
    if key == "network":
        return _read_network(file, value)
    number = _read_number(value)
    if key in _WORDS:
        fits, fix = value in _WORDS[key], did_you_mean(value, _WORDS[key])
    elif kind == "str":
        fits, fix = isinstance(value, str), "put it in quotes"
    elif kind == "bool":
        fits, fix = isinstance(value, bool), "write true or false"
    elif kind == "int":
        fits, fix = 0 < number == number // 1, "give a positive whole number"
    elif key.endswith("overlap"):
        fits, fix = 0 <= number <= 1, "a share is from 0 to 1"
    elif key.endswith("share"):
        fits, fix = 0 < number <= 1, "a share is above 0 and at most 1"
    elif key.endswith(("start", "latency")):
        fits, fix = number >= 0, "give a number of seconds such as 2e-6"
    else:
        fits, fix = number > 0, "give a number above 0, such as 3e12"
    if not fits:
        raise NamedMeshError(f"{file}: {key} is {repr(value)[:200]}", fix=fix)
    return {"int": int(number), "float": number}.get(kind, value)


def _read_number(value: Any) -> float:
    """Return a number of a size that occurs, -1 for anything else; YAML reads 3e12 as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return -1.0
    right = number == 0 or 1e-30 < number < 1e30
    return number if right and not isinstance(value, bool) else -1.0


def _read_rates(file: str, rates: Any) -> dict[str, float]:
    """Return the rates of products by dtype, or by dtype and precision."""
    for key in rates if isinstance(rates, Mapping) else ():
        dtype, _, precision = str(key).partition(" ")
        if dtype not in (*FLOATS, *FLOATS8) or precision not in ("", "default", "high", "highest"):
            fix = did_you_mean(key, (*FLOATS, *FLOATS8))
            raise NamedMeshError(f"{file}: flops has the dtype {repr(key)[:200]}", fix=fix)
    if not isinstance(rates, Mapping) or "float32" not in rates:
        raise NamedMeshError(
            f"{file}: flops has no rate for float32, which others count as: {repr(rates)[:200]}",
            fix="give a rate for each dtype, e.g. {bfloat16: 400e12, float32: 200e12}",
        )
    return {key: _read_field(file, key, "float", rate) for key, rate in rates.items()}


def _read_network(file: str, fields: Any) -> Network:
    """Return the network."""
    kind = fields.get("kind") if isinstance(fields, Mapping) else None
    if kind not in _NETWORKS:
        raise NamedMeshError(
            f"{file}: the network is {repr(fields)[:200]}",
            fix=f"give its kind, {join_names([*_NETWORKS])}, e.g. "
            "{kind: nodes, devices: 8, inside: 200e9, across: 25e9}",
        )
    cls = _NETWORKS[kind]
    rest = {key: value for key, value in fields.items() if key != "kind"}
    shape = {"shape": None} if cls is TorusSlice else {}
    return cls(**shape, **_read_fields(f"{file}: the {kind} network", cls, rest))
