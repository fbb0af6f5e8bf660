"""A CUDA toolkit that does nothing: XLA ends compiling with tools that its package does not have.

For each kernel it links NVIDIA's `libdevice` and runs `ptxas`, which makes machine code. Absent
GPUs run none, and collectives, schedule and memory are settled before: a library without functions
and an assembler that writes a word take their places, whatever toolkit the machine has.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from namedmesh.aot.local_gpu import are_here

_ASSEMBLER = """#!/bin/sh
if [ "$1" = --version ]; then
  echo 'Cuda compilation tools, release 13.0, V13.0.48'
  exit
fi
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then echo none > "$2"; fi
  shift
done
"""
_FILES = {
    "bin/ptxas": _ASSEMBLER,
    # XLA reads LLVM's text too. Functions that are not there stay calls.
    "nvvm/libdevice/libdevice.10.bc": 'target triple = "nvptx64-nvidia-cuda"\n',
}


def toolkit_options(devices: Sequence[Any]) -> dict[str, str | bool]:
    """Return the options under which GPUs that are not here need no CUDA toolkit."""
    return {} if are_here(devices) else {"xla_gpu_cuda_data_dir": _make_toolkit().name}


@functools.cache
def _make_toolkit() -> tempfile.TemporaryDirectory[str]:
    """Write the files, which are there as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="namedmesh-toolkit-")
    for name, text in _FILES.items():
        path = pathlib.Path(folder.name, name)
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    return folder
