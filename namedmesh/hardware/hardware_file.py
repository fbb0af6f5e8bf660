"""Hardware of a user's own, described in a YAML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from namedmesh.errors.errors import (
    NamedMeshError,
    did_you_mean,
    join_names,
    suggest_names,
    whole_number,
)
from namedmesh.hardware.links import Host, Network, Nodes
from namedmesh.hardware.slice_links import TorusSlice
from namedmesh.hardware.target import GENERATIONS
from namedmesh.ir.tensor import FLOATS
from namedmesh.records.paths import check_path, describe_os_error

# What a file must have, and what it may have.
_FIGURES = ("vector_flops", "memory_bytes", "memory_bandwidth")
_SHARES = ("product_share", "kernel_share", "memory_share")
_SWITCHES = (
    "fuses_products", "fuses_relu", "merges_sums", "rounds_products", "widens", "kernels", "shared",
)  # fmt: skip
_REPEATS = ("all", "cheap", "none")
_NETWORKS: dict[str, tuple[type[Network], tuple[str, ...], tuple[str, ...]]] = {
    "nodes": (Nodes, ("devices", "inside", "across"), ("inside_latency", "across_latency")),
    "torus": (TorusSlice, ("generation", "bandwidth"), ("latency", "across", "across_latency")),
    "host": (Host, ("bandwidth",), ("across", "across_start")),
}
EXAMPLE = """\
name: my-gpu
flops: {bfloat16: 400e12, float32: 200e12}
vector_flops: 30e12
memory_bytes: 80e9
memory_bandwidth: 3e12
network: {kind: nodes, devices: 8, inside: 200e9, across: 25e9}
"""


def read_hardware(path: str | os.PathLike) -> dict[str, Any]:
    """Read the description of some hardware."""
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
    return _Checker(name).read(fields)


class _Checker:
    """Checks the entries of one file."""

    def __init__(self, name: str):
        self.what = f"hardware file {name!r}"

    def read(self, fields: Any) -> dict[str, Any]:
        """Return the fields of a Hardware, or raises."""
        required = ("name", "flops", *_FIGURES, "network")
        self.check_keys(fields, required, ("start", "repeats", *_SHARES, *_SWITCHES), "")
        numbers = {key: self.number(fields, key) for key in _FIGURES}
        numbers |= {key: self.number(fields, key) for key in ("start", *_SHARES) if key in fields}
        for key in _SHARES:
            if numbers.get(key, 0) > 1:
                raise self.error(f"{key} is {fields[key]!r}", fix="a share is at most 1")
        switches = {key: self.switch(fields, key) for key in _SWITCHES if key in fields}
        repeats = fields.get("repeats", "all")
        if repeats not in _REPEATS:
            raise self.error(f"repeats is {repeats!r}", fix=did_you_mean(repeats, _REPEATS))
        if not isinstance(fields["name"], str):
            raise self.error(f"the name is {fields['name']!r}", fix="put the name in quotes")
        return {
            **numbers,
            **switches,
            "name": fields["name"],
            "repeats": repeats,
            "memory_bytes": int(numbers["memory_bytes"]),
            "flops": self.flops(fields["flops"]),
            "network": self.network(fields["network"]),
        }

    def flops(self, rates: Any) -> dict[str, float]:
        """Return the rates of products by dtype, or raises."""
        if not isinstance(rates, Mapping):
            raise self.error(
                f"flops is {rates!r}", fix="give a rate for each dtype, e.g. {bfloat16: 400e12}"
            )
        for key in rates:
            dtype, _, precision = str(key).partition(" ")
            if dtype not in FLOATS or precision not in ("", "default", "high", "highest"):
                raise self.error(f"flops has the dtype {key!r}", fix=did_you_mean(key, FLOATS))
        if "float32" not in rates:
            raise self.error(
                "flops has no rate for float32", fix="add one: dtypes that have none count as it"
            )
        return {key: self.number(rates, key) for key in rates}

    def network(self, fields: Any) -> Network:
        """Return the network, or raises."""
        kind = fields.get("kind") if isinstance(fields, Mapping) else None
        if not isinstance(kind, str) or kind not in _NETWORKS:
            raise self.error(
                f"the network is {fields!r}",
                fix=f"give its kind: {join_names([*_NETWORKS])}, e.g. "
                "{kind: nodes, devices: 8, inside: 200e9, across: 25e9}",
            )
        make, required, optional = _NETWORKS[kind]
        self.check_keys(fields, ("kind", *required), ("start", *optional), f"the {kind} network: ")
        values: dict[str, Any] = {"start": 0.0, **dict.fromkeys(optional, 0.0)}
        numbers = [key for key in fields if key not in ("kind", "generation", "devices")]
        values |= {key: self.number(fields, key) for key in numbers}
        if kind == "torus":
            values |= {"generation": self.generation(fields["generation"]), "shape": None}
        if kind == "nodes":
            values["devices"] = self.count(fields, "devices")
        return make(**values)

    def generation(self, name: Any) -> str:
        """Return the TPU generation whose network it is, or raises."""
        if name not in GENERATIONS:
            raise self.error(f"the generation is {name!r}", fix=did_you_mean(name, GENERATIONS))
        return name

    def count(self, fields: Mapping[str, Any], key: str) -> int:
        """Return a positive whole number, or raises."""
        number = whole_number(fields[key])
        if number is None or number < 1:
            raise self.error(f"{key} is {fields[key]!r}", fix="give a positive whole number")
        return number

    def check_keys(
        self, fields: Any, required: tuple[str, ...], optional: tuple[str, ...], where: str
    ) -> None:
        """Raise unless there is every entry that is required, and none that is not known."""
        if not isinstance(fields, Mapping):
            raise self.error(f"{where}it is not a mapping: {fields!r}", fix=f"write\n{EXAMPLE}")
        known = (*required, *optional)
        unknown = [str(key) for key in fields if key not in known]
        if unknown:
            raise self.error(
                f"{where}it has {join_names(unknown)}", fix=suggest_names(unknown, known)
            )
        missing = [key for key in required if key not in fields]
        if missing:
            raise self.error(
                f"{where}it lacks {join_names(missing)}", fix=f"add {join_names(missing)}"
            )

    def number(self, fields: Mapping[str, Any], key: str) -> float:
        """Return a positive number, or raises; YAML reads 3e12 as text."""
        try:
            value = float(fields[key])
        except (TypeError, ValueError):
            value = -1.0
        if isinstance(fields[key], bool) or not 0 <= value < float("inf"):
            raise self.error(f"{key} is {fields[key]!r}", fix="give a number such as 3e12")
        if not value and not key.endswith(("start", "latency")):
            raise self.error(f"{key} is 0", fix="give a number above 0")
        return value

    def switch(self, fields: Mapping[str, Any], key: str) -> bool:
        """Return true or false, or raises."""
        if not isinstance(fields[key], bool):
            raise self.error(f"{key} is {fields[key]!r}", fix="write true or false")
        return fields[key]

    def error(self, problem: str, fix: str) -> NamedMeshError:
        """Make an error about the file."""
        return NamedMeshError(f"{self.what}: {problem}", fix=fix)
