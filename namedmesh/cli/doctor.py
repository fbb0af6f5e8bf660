"""The command `namedmesh doctor`: prints what this machine can do, and what is missing."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from namedmesh.display.text import columns, human
from namedmesh.version import __version__

DOCTOR_EXAMPLES = """\
examples:
  versions, devices, compilers and optional packages of this machine
    namedmesh doctor
  the same for a bug report or a script
    namedmesh doctor --json

exit status: 0 unless something that namedmesh cannot run without is missing
"""
OLDEST_PYTHON = (3, 11)
OPTIONAL = {
    "rich": ("progress bars", "training"),
    "tensorstore": ("checkpoints", "training"),
    "safetensors": ("weights of other libraries", "training"),
    "sentencepiece": ("vocabularies of examples/m4", "m4"),
    "sacrebleu": ("scores of examples/m4", "m4"),
    "shtab": ("completion in shells", "completion"),
}


@dataclass(frozen=True)
class Finding:
    """One line of the report; `ok` is None for what is neither there nor needed."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh doctor`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print what this machine can do."""
    findings = list(examine())
    if arguments.json:
        print(json.dumps([asdict(one) for one in findings], indent=1))
    else:
        marks = _choose_marks()
        rows = [(marks[one.ok], one.name, one.found, one.fix) for one in findings]
        print("\n".join(columns([("", "what", "found", "how to get it"), *rows], 0)))
    return 1 if any(one.ok is False for one in findings) else 0


def _choose_marks() -> dict[bool | None, str]:
    """Return signs for there, missing and not needed that the terminal can print."""
    try:
        "✓✗".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return {True: "ok", False: "MISSING", None: "-"}
    return {True: "✓", False: "✗", None: "-"}


def examine() -> Iterator[Finding]:
    """Yield what was found, most important first."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    recent = sys.version_info >= OLDEST_PYTHON
    yield Finding("Python", recent, platform.python_version(), "" if recent else f"Python {oldest}")
    yield Finding("namedmesh", True, f"{__version__}, {os.path.dirname(os.path.dirname(__file__))}")
    for name, versions in read_requirements().items():
        yield _examine_package(name, versions, f"pip install '{name}{versions}'", required=True)
    fix = "pip install 'namedmesh[tensorflow]': nm.export and nm.compile need it"
    # Planning, and running Artifacts that were exported elsewhere, need no TensorFlow.
    yield _examine_package("tensorflow", read_requirements("tensorflow")["tensorflow"], fix)
    yield from _examine_devices()
    yield _examine_tpu_compiler()
    yield _examine_gpu_compiler()
    for name, (purpose, extra) in OPTIONAL.items():
        yield _examine_package(name, "", f"pip install 'namedmesh[{extra}]': {purpose}")
    yield Finding("this machine", True, _describe_machine())
    for name, value in sorted(os.environ.items()):
        if name.startswith("NAMEDMESH_"):
            yield Finding(f"${name}", True, value)


def read_requirements(extra: str = "") -> dict[str, str]:
    """Return the versions that namedmesh, or one of its extras, asks for by package."""
    try:
        lines = importlib.metadata.requires("namedmesh") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that was not installed
        lines = ["jax", "numpy", 'tensorflow; extra == "tensorflow"']
    requirements = {}
    for line in lines:
        requirement, _, condition = line.partition(";")
        if (f'"{extra}"' in condition) if extra else not condition:
            name, versions = re.fullmatch(r"([\w.-]+)(?:\[.*\])?(.*)", requirement.strip()).groups()  # type: ignore[union-attr]
            requirements[name] = versions
    return requirements


def _version_of(name: str) -> str:
    """Return the version of an installed package; empty if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _examine_package(name: str, versions: str, fix: str, required: bool = False) -> Finding:
    """Compare the version of a package with those that are supported."""
    version = _version_of(name)
    if version and all(_satisfies(version, one) for one in versions.split(",") if one):
        return Finding(name, True, version)
    found = f"{version}, supported: {versions}" if version else "not installed"
    return Finding(name, False if required else None, found, fix)


def _satisfies(version: str, bound: str) -> bool:
    """Check a version against a bound such as >=0.10, <0.13 or ==2.21.*."""
    sign, digits = re.match(r"([<>=~!]+)\s*([\d.]+)", bound).groups()  # type: ignore[union-attr]
    here, there = ([int(part) for part in re.findall(r"\d+", text)] for text in (version, digits))
    return {"<": here < there, "==": here[: len(there)] == there}.get(sign, here >= there)


def _examine_devices() -> Iterator[Finding]:
    """Yield the devices that jax lists, and what keeps an NVIDIA GPU from being among them."""
    try:
        import jax

        devices, processors = jax.devices(), jax.devices("cpu")
    except Exception as error:  # jax is not there, or a plugin does not start
        first = str(error).partition("\n")[0]
        yield Finding("devices", False, f"{type(error).__name__}: {first}", "see what jax says")
        return
    kinds = sorted({device.device_kind for device in devices})
    yield Finding("devices", True, f"{len(devices)} {devices[0].platform}: {', '.join(kinds)}")
    more = "namedmesh.runtime.use_cpu_devices(8) before jax is used makes 8"
    yield Finding("CPU devices", True, str(len(processors)), more)
    if any(device.platform in ("gpu", "cuda") for device in devices):
        yield Finding("GPU", True, f"{len(devices)} of {kinds[0]}")
        return
    plugin = any(importlib.util.find_spec(f"jax_cuda{i}_plugin") for i in (12, 13))
    present = shutil.which("nvidia-smi") is not None
    found = "an NVIDIA GPU, which jax does not list" if present else "no NVIDIA GPU"
    found += ", the CUDA plugin is installed" if plugin else ", no CUDA plugin"
    yield Finding("GPU", None, found, "pip install 'jax[cuda13]'" if present and not plugin else "")


def _examine_tpu_compiler() -> Finding:
    """Look for libtpu, which compiles ahead of time for TPUs that are not here."""
    path = os.environ.get("TPU_LIBRARY_PATH", "")
    if path and os.path.exists(path):
        return Finding("TPU compiler", True, f"libtpu at {path}")
    if version := _version_of("libtpu"):
        return Finding("TPU compiler", True, f"libtpu {version}")
    fix = "pip install libtpu: namedmesh aot --target tpu-..."
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        fix = "libtpu exists for x86-64 Linux alone; use a target such as cpu:8"
    return Finding("TPU compiler", None, "no libtpu", fix)


def _examine_gpu_compiler() -> Finding:
    """Look for XLA's GPU compiler, which compiles ahead of time for GPUs that are not here."""
    names = (f"jax-cuda{i}-pjrt" for i in (12, 13))
    found = [f"{name} {version}" for name in names if (version := _version_of(name))]
    fix = "pip install 'namedmesh[gpu-aot]': namedmesh aot --target h100:..."
    text = ", ".join(found)
    return Finding("GPU compiler", bool(found) or None, text or "none", "" if found else fix)


def _describe_machine() -> str:
    """Describe cores and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {human(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}"
    return f"{platform.system()} {platform.machine()}, {cores} cores{memory}"
