"""Hardware: FLOP/s, memory and links of one kind of device, by name or from a YAML file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
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
    whole_number,
)
from namedmesh.hardware.chips import CHIPS, TPUS, Chip
from namedmesh.hardware.links import Host, Network, Nodes, TorusSlice
from namedmesh.hardware.topology import Target
from namedmesh.ir.tensor import FLOATS
from namedmesh.records.paths import check_path, describe_os_error


@dataclass(frozen=True, eq=False, repr=False)
class Hardware:
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
        memory_share: The share of `memory_bandwidth` that ops reach.
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
        shared: Whether all devices of a mesh share these figures, as those of one host do.

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
    memory_share: float = 1.0
    start: float = 0.0
    fuses_products: bool = False
    fuses_relu: bool = False
    merges_sums: bool = False
    rounds_products: bool = False
    repeats: str = "all"
    widens: bool = False
    kernels: bool = False
    shared: bool = False

    @classmethod
    def parse(cls, text: str | os.PathLike) -> Hardware:
        """Find hardware by name, or read it from a file.

        Args:
            text: `tpu-v3` or another generation, `tpu-v3:4x4` for a slice of it, `h100`, `h200`,
                `a100`, `cpu`, or the path of a YAML file.

        Returns:
            The hardware.

        Example:
            >>> import namedmesh as nm
            >>> nm.Hardware.parse("tpu-v3:4x4").network.shape
            (4, 4)
        """
        if isinstance(text, os.PathLike) or str(text).endswith((".yaml", ".yml")):
            return _read_hardware(text)
        name, colon, _ = check_text(text, "hardware", "tpu-v3").partition(":")
        chip = CHIPS.get(name)
        if chip is None or (colon and chip.family != "tpu"):
            raise NamedMeshError(
                f"there is no hardware {text!r}",
                fix=f"{did_you_mean(name, CHIPS)} (or give the path of a YAML file)",
            )
        target = Target.parse(text) if colon else None
        if target and target.slices > 1:
            raise NamedMeshError(
                f"{text!r} names {target.slices} slices, which are part of the mesh",
                fix=f"write '{target.one_slice}', and slices={target.slices} in the mesh",
            )
        return cls(
            text,
            {dtype: rate * 1e12 / chip.devices for dtype, rate in chip.tera.items()},
            vector_flops=chip.vector_tera * 1e12 / chip.devices,
            memory_bytes=chip.memory // chip.devices,
            memory_bandwidth=chip.bandwidth / chip.devices,
            network=_network_of(chip, name.removeprefix("tpu-"), target and target.shape),
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
        name = f"{dtype} {precision}"
        return self.flops.get(name) or self.flops.get(dtype) or self.flops["float32"]

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
# fitted to profiles of an H200; those of TPUs are assumed.
_COMPILERS: dict[str, dict[str, Any]] = {
    "tpu": dict(
        product_share=0.85, memory_share=0.85, start=1e-6,
        fuses_products=True, rounds_products=True, repeats="cheap",
    ),
    "gpu": dict(
        product_share=0.82, kernel_share=0.056, memory_share=0.85, start=2e-6,
        fuses_relu=True, merges_sums=True, kernels=True,
    ),
    "cpu": dict(start=5e-6, repeats="none", widens=True, shared=True),
}  # fmt: skip


def _network_of(chip: Chip, generation: str, shape: tuple[int, ...] | None) -> Network:
    """Return the links of a chip; latencies are assumed, those of CPUs measured."""
    if chip.family == "tpu":
        return TorusSlice(generation, shape, chip.link, 1e-6, 2e-6, chip.across, 2e-5)
    if chip.family == "gpu":
        return Nodes(chip.node, chip.link, chip.across, 1e-6, 5e-6, 5e-6)
    # gloo took 0.2 and 0.6 ms for sums of 4 bytes over two and over four processes.
    return Host(chip.link, 20e-6, chip.across, 4e-4)


# Networks that a file may describe, and the figures that each must have.
_NETWORKS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "nodes": (Nodes, ("devices", "inside", "across")),
    "torus": (TorusSlice, ("generation", "bandwidth")),
    "host": (Host, ("bandwidth",)),
}
_WORDS = {"repeats": ("all", "cheap", "none"), "generation": tuple(TPUS)}
EXAMPLE = """\
name: my-gpu
flops: {bfloat16: 400e12, float32: 200e12}
vector_flops: 30e12
memory_bytes: 80e9
memory_bandwidth: 3e12
network: {kind: nodes, devices: 8, inside: 200e9, across: 25e9}
"""


def _read_hardware(path: str | os.PathLike) -> Hardware:
    """Read hardware from a YAML file."""
    import yaml

    name = check_path(path, "the file of the hardware")
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise NamedMeshError(
            f"cannot read hardware file {name!r}: {reason}", fix="check the path"
        ) from None
    try:
        fields = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise NamedMeshError(
            f"hardware file {name!r} is not YAML: {getattr(error, 'problem', error)}{at}",
            fix="write lines such as 'memory_bandwidth: 3e12'",
        ) from None
    every = dataclasses.fields(Hardware)
    required = [one.name for one in every if one.default is dataclasses.MISSING]
    return Hardware(**_Reader(f"hardware file {name!r}").read(Hardware, fields, required))


class _Reader:
    """Reads the entries of one file, each checked by the type of the field it is for."""

    def __init__(self, file: str):
        self.file = file

    def read(
        self, cls: type, fields: Any, required: Sequence[str], where: str = ""
    ) -> dict[str, Any]:
        """Return the fields of a dataclass."""
        if not isinstance(fields, Mapping):
            raise self.error(f"{where}it is not a mapping: {fields!r}", f"write\n{EXAMPLE}")
        types = {one.name: one.type for one in dataclasses.fields(cls) if one.name != "shape"}
        unknown = [str(key) for key in fields if key not in types]
        if unknown:
            raise self.error(f"{where}it has {join_names(unknown)}", suggest_names(unknown, types))
        missing = [key for key in required if key not in fields]
        if missing:
            raise self.error(f"{where}it lacks {join_names(missing)}", f"add {join_names(missing)}")
        return {key: self.value(key, types[key], value) for key, value in fields.items()}

    def value(self, key: str, kind: Any, value: Any) -> Any:
        """Return one entry as its field has it."""
        if key == "flops":
            return self.rates(value)
        if key == "network":
            return self.network(value)
        if key in _WORDS and value not in _WORDS[key]:
            raise self.error(f"{key} is {value!r}", did_you_mean(value, _WORDS[key]))
        if kind == "str" and not isinstance(value, str):
            raise self.error(f"the {key} is {value!r}", f"put the {key} in quotes")
        if kind == "bool" and not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}", "write true or false")
        if key == "devices" and (whole_number(value) or 0) < 1:
            raise self.error(f"{key} is {value!r}", "give a positive whole number")
        if kind == "float" or kind == "int":
            number = self.number(key, value)
            return int(number) if kind == "int" else number
        return value

    def number(self, key: str, value: Any) -> float:
        """Return a non-negative number; YAML reads 3e12 as text."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if isinstance(value, bool) or not 0 <= number < float("inf"):
            raise self.error(f"{key} is {value!r}", "give a number such as 3e12")
        if not number and not key.endswith(("start", "latency")):
            raise self.error(f"{key} is 0", "give a number above 0")
        if number > 1 and key.endswith("share"):
            raise self.error(f"{key} is {value!r}", "a share is at most 1")
        return number

    def rates(self, rates: Any) -> dict[str, float]:
        """Return the rates of products by dtype."""
        if not isinstance(rates, Mapping):
            raise self.error(
                f"flops is {rates!r}", "give a rate for each dtype, e.g. {bfloat16: 400e12}"
            )
        for key in rates:
            dtype, _, precision = str(key).partition(" ")
            if dtype not in FLOATS or precision not in ("", "default", "high", "highest"):
                raise self.error(f"flops has the dtype {key!r}", did_you_mean(key, FLOATS))
        if "float32" not in rates:
            raise self.error(
                "flops has no rate for float32", "add one: dtypes that have none count as it"
            )
        return {key: self.number(key, rate) for key, rate in rates.items()}

    def network(self, fields: Any) -> Network:
        """Return the network."""
        kind = fields.get("kind") if isinstance(fields, Mapping) else None
        if not isinstance(kind, str) or kind not in _NETWORKS:
            raise self.error(
                f"the network is {fields!r}",
                f"give its kind: {join_names([*_NETWORKS])}, e.g. "
                "{kind: nodes, devices: 8, inside: 200e9, across: 25e9}",
            )
        cls, required = _NETWORKS[kind]
        fields = {key: value for key, value in fields.items() if key != "kind"}
        values = self.read(cls, fields, required, f"the {kind} network: ")
        defaults = {one.name: 0.0 for one in dataclasses.fields(cls) if one.name != "shape"}
        shape = {"shape": None} if cls is TorusSlice else {}
        return cls(**{**defaults, **shape, **values})

    def error(self, problem: str, fix: str) -> NamedMeshError:
        """Make an error about the file."""
        return NamedMeshError(f"{self.file}: {problem}", fix=fix)
