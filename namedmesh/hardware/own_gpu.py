"""A GPU that one describes oneself, in a file as XLA's compiler reads it."""

from __future__ import annotations

import functools
import re

from namedmesh.errors.errors import NamedMeshError, join_names
from namedmesh.files import read_file
from namedmesh.hardware.chips import Chip

ENDINGS = (".txtpb", ".pbtxt", ".textproto")
LARGEST_FILE = 2**20
_FIELD = re.compile(r'(\w+)\s*:\s*("(?:[^"\\\n]|\\.)*"|[^\s{},;]+)|([{}])|(\w+)\s*(?=\{)')
# Without threads_per_warp the compiler ends the process, without others it takes what there is not.
_REQUIRED = (
    "threads_per_block_limit", "threads_per_warp", "shared_memory_per_block",
    "shared_memory_per_core", "threads_per_core_limit", "core_count", "fpus_per_core",
    "block_dim_limit_x", "block_dim_limit_y", "block_dim_limit_z", "memory_bandwidth",
    "l2_cache_size", "clock_rate_ghz", "device_memory_size", "registers_per_core_limit",
    "registers_per_block_limit",
)  # fmt: skip
_EXAMPLE = "take one of XLA's texts (xla/backends/gpu/target_config/specs) and edit it"


def read_gpu(path: str) -> Chip:
    """Read the file of a GPU."""
    data, file = read_file(path, "GPU file", LARGEST_FILE), f"GPU file {path!r}"
    try:
        return _make_chip(file, data.decode())
    except UnicodeDecodeError:
        raise NamedMeshError(f"{file} is not text", fix=_EXAMPLE) from None


@functools.lru_cache
def _make_chip(file: str, text: str) -> Chip:
    """Make a chip of a GpuTargetConfigProto in text; equal texts are one chip."""
    fields, depth = {}, 0
    for name, value, brace, block in _FIELD.findall(re.sub(r"(?m)^\s*#.*$", "", text)):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            break
        if block or depth < 2:  # rates of single element types are deeper
            fields[block or name] = value
    if depth or "gpu_device_info" not in fields:
        problem = "its braces do not match" if depth else "it has no gpu_device_info"
        raise NamedMeshError(f"{file} describes no GPU to XLA: {problem}", fix=_EXAMPLE)
    if "cuda_compute_capability" not in fields:
        kind = fields.get("platform_name", "")
        raise NamedMeshError(
            f"{file} has no cuda_compute_capability{f': it is for {kind}' if kind else ''}",
            fix="give an NVIDIA GPU: there is no compiler for others here",
        )
    wrong = [name for name in _REQUIRED if not _read_number(fields.get(name)) > 0]
    if wrong:
        raise NamedMeshError(
            f"{file} lacks a number above 0 for {join_names(wrong)}", fix=f"add {wrong[0]}: ..."
        )
    return Chip(
        family="gpu", kinds=(), tera={}, vector_tera=0, node=2**20, description=text,
        memory=int(_read_number(fields["device_memory_size"])),
        bandwidth=_read_number(fields["memory_bandwidth"]), link=0, across=0,
    )  # fmt: skip


def _read_number(value: str | None) -> float:
    """Return a number, or 0 if it is none."""
    try:
        return float(value or 0)
    except ValueError:
        return 0.0
