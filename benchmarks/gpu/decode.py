"""Translation on one GPU: tokens a second of beam search, flat and ordinary, in two dtypes.

python -m benchmarks.gpu.decode export FOLDER              needs TensorFlow, no GPU
python -m benchmarks.gpu.decode measure FOLDER --json OUT  needs a GPU, no TensorFlow

The model is `base` with its first weights, which seldom end a sentence: nearly all steps are run,
and every sentence counts as many tokens as there were steps. A flat beam never moves its cache; an
ordinary one moves what a hypothesis follows whenever the order of hypotheses changes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from typing import Any

import numpy as np

ROWS, LENGTH, BEAM, TIMED = 128, 64, 4, 7
VARIANTS = {
    f"{kind} {dtype}": (kind == "flat", dtype)
    for dtype in ("bfloat16", "float32")
    for kind in ("flat", "ordinary")
}


def export(folder: pathlib.Path) -> None:
    """Write an Artifact for each variant."""
    import namedmesh as nm
    from namedmesh.layers import Beam, Decoder, Transformer, config

    folder.mkdir(parents=True, exist_ok=True)
    for name, (flat, dtype) in VARIANTS.items():
        model = Transformer(config("base").but(dropout=0.0, dtype=dtype), ROWS, LENGTH, LENGTH)

        def translate(source, segments, model=model, flat=flat):
            decoder = Decoder(model, source, segments, hypotheses=BEAM, flat=flat)
            return decoder.decode(Beam(decoder.N))

        tokens = nm.spec([model.G, model.S], "int32")
        program = nm.trace(translate, source=tokens, segments=tokens)
        path = folder / f"{name.replace(' ', '_')}.nmesh"
        nm.export(program, nm.Mesh(all=1), "").save(path)
        print(path, flush=True)


def measure(folder: pathlib.Path) -> dict[str, Any]:
    """Return medians of whole batches, the variants by turns, results fetched."""
    import jax

    from namedmesh.runtime import Artifact, Executable

    random = np.random.default_rng(0)
    source = random.integers(3, 16_000, size=(ROWS, LENGTH)).astype(np.int32)
    batch = {"source": source, "segments": np.ones_like(source)}
    runs, times, steps = {}, {name: [] for name in VARIANTS}, {}
    found: dict[str, np.ndarray] = {}
    for name in VARIANTS:
        path = folder / f"{name.replace(' ', '_')}.nmesh"
        executable = Executable(Artifact.load(path), strict=False)
        runs[name] = executable, executable.init(seed=0)
    for i in range(TIMED + 2):
        for name, (executable, state) in runs.items():
            start = time.perf_counter()
            _, results = executable(state, **batch)
            found[name], steps[name] = np.asarray(results["sequences"]), int(results["steps"])
            if i >= 2:
                times[name].append(time.perf_counter() - start)
    rows = []
    for name, seconds in times.items():
        median = statistics.median(seconds)
        kind, dtype = name.split()
        same = (found[name] == found[f"ordinary {dtype}"]).all(axis=(1, 2)).mean()
        rows.append(
            {
                "beam": kind,
                "dtype": dtype,
                "seconds": median,
                "steps": steps[name],
                "tokens_per_second": ROWS * steps[name] / median,
                "same_as_ordinary": float(same),
                "peak_gib": runs[name][0].report.peak_bytes / 2**30,
            }
        )
    device = jax.devices()[0].device_kind
    sizes = {"model": "base", "sentences": ROWS, "length": LENGTH, "hypotheses": BEAM}
    command = "python -m benchmarks.gpu.decode measure FOLDER --json OUT"
    return {"rows": rows, "device": device, "jax": jax.__version__, **sizes, "command": command}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task", choices=("export", "measure"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, help="the file of the result")
    arguments = parser.parse_args()
    if arguments.task == "export":
        export(arguments.folder)
        return
    text = json.dumps(measure(arguments.folder), indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
