"""What tuning changes: train steps compiled for a cluster beside one real GPU, and without it.

python -m benchmarks.gpu_tuning FOLDER NAME ... --chip h200 --json FILE

FOLDER has the Artifacts of `python -m benchmarks.gpu_clusters export FOLDER`. Each is compiled
twice for GPUs of the machine's kind: with kernels tuned on the GPU that is here, and as on a
machine that has none. It needs the GPU, jax[cuda12] and no TensorFlow.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

from benchmarks.gpu_cluster_cases import CASES

_KINDS = "all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute"
_COLLECTIVE = re.compile(rf"^ .* = (.*) ({_KINDS})(-start|-done)?\(")
_CUBLAS, _TRITON = '"__cublas', '"__triton_nested_gemm_fusion"'


def compile_once(path: str, target: str) -> dict[str, Any]:
    """Compile an Artifact and count what can differ."""
    import namedmesh.aot.compilation as compilation
    from namedmesh.artifacts.artifact import Artifact

    texts, parse = [], compilation.parse_module
    compilation.parse_module = lambda text: (texts.append(text), parse(text))[1]
    report = compilation.compile_for(Artifact.load(path), target)
    assert report.audit is not None and report.peak_bytes is not None
    kinds, order, hidden = collections.Counter[str](), [], 0
    running = collections.Counter[str]()
    for line in texts[0].splitlines():
        if found := _COLLECTIVE.match(line):
            shape, kind, half = found.groups()
            running[kind] += {"-start": 1, "-done": -1}.get(half, 0)
            if half != "-done":
                kinds[kind] += 1
                order.append((kind, re.findall(r"\w+\[[\d,]*\]", shape)[-1]))
        elif running.total() and (_CUBLAS in line or _TRITON in line):
            hidden += 1
    return {
        "tuning": report.tuning,
        "exact": report.audit.exact,
        "peak_gib": round(report.peak_bytes / 2**30, 3),
        "compile_seconds": round(report.compile_seconds, 1),
        "collectives": dict(sorted(kinds.items())),
        "order": order,
        "products_by_cublas": texts[0].count(_CUBLAS),
        "products_by_triton": texts[0].count(_TRITON),
        "products_beside_a_collective": hidden,
    }


def compare(name: str, path: pathlib.Path, target: str) -> dict[str, Any]:
    """Compile an Artifact both ways, side by side in two processes."""
    command = [sys.executable, "-m", "benchmarks.gpu_tuning", "--one", str(path), target]
    hide = {**os.environ, "JAX_PLATFORMS": "cpu"}
    running = {
        way: subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for way, environment in (("tuned", None), ("not_tuned", hide))
    }
    both = {way: json.loads(one.communicate()[0].splitlines()[-1]) for way, one in running.items()}
    orders = [one.pop("order") for one in both.values()]
    row = {"case": name, "target": target, "same_order": orders[0] == orders[1], **both}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Run the command line."""
    if sys.argv[1] == "--one":
        print(json.dumps(compile_once(*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="+", help="cases of benchmarks.gpu_clusters")
    parser.add_argument("--chip", default="h200", help="the kind of this machine's GPU")
    parser.add_argument("--json", type=pathlib.Path, required=True, help="the file of the rows")
    options = parser.parse_args()
    rows = []
    for name in options.names:
        target = f"{options.chip}:{CASES[name].target.partition(':')[2]}"
        rows.append(compare(name, options.folder / f"{name}.nmesh", target))
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
