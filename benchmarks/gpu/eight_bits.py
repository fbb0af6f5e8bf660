"""Products in 8 bits on one GPU: the seconds of a stack of layers, and how a loss goes down.

python -m benchmarks.gpu.eight_bits export FOLDER              needs TensorFlow, no GPU
python -m benchmarks.gpu.eight_bits measure FOLDER --json OUT  needs a GPU, no TensorFlow
python -m benchmarks.gpu.eight_bits measure FOLDER --text FILE --json OUT  so; learns a text

Train steps of Llama-style models, once with bfloat16 products and in each way with float8. The
stack has two layers of Llama 3 8B's sizes; its steps are timed in turn. The curve is that of a
smaller model, which learns the bytes of a text (plain, or compressed by xz), or a language of 512
tokens, each drawn by the two before it, which has to be learned by heart; bfloat16 again, with
other rows, says how far curves lie apart anyway.
"""

from __future__ import annotations

import argparse
import functools
import json
import lzma
import pathlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

TIMED, STEPS, WINDOW = 12, 2000, 100
VOCAB, CHOICES = 512, 4
KINDS = ("bfloat16", "float8", "float8-delayed", "float8-e4m3", "float8-blocks")
# The sizes of Llama-style models: layers, model, hidden, heads; rows and tokens of a batch.
MODELS = {
    "stack": (2, 4096, 14336, 32, 16, 1024),
    "curve": (4, 1024, 4096, 8, 16, 512),
    "small": (2, 256, 1024, 4, 8, 128),
    "tiny": (2, 32, 64, 2, 2, 16),
}


def export(folder: pathlib.Path, models: list[str]) -> None:
    """Write an Artifact of a train step for each model and each kind of products."""
    import namedmesh as nm
    from examples.llm.architecture import Architecture
    from examples.llm.model import LanguageModel
    from examples.llm.settings import Settings
    from namedmesh.layers import Float8, Weights, use_weights

    ways = dict(
        zip(KINDS, (Weights(), Float8(), Float8(history=16), Float8(gradients="float8_e4m3fn"),
                    Float8(block=128)), strict=True)
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for name in models:
        layers, model, hidden, heads, batch, length = MODELS[name]
        shape = Architecture(
            vocab=VOCAB, layers=layers, model=model, hidden=hidden, heads=heads, group=1,
            key=model // heads,
        )  # fmt: skip
        settings = Settings(
            shape, batch=batch, length=length, steps=STEPS, learning_rate=3e-4, warmup=100,
            dtype="bfloat16", layout="one", unroll=True,
        )  # fmt: skip
        rows = nm.spec([nm.Dimension("batch", batch), nm.Dimension("seq", length)], "int32")
        for kind, weights in ways.items():
            with use_weights(weights):
                program = nm.trace(LanguageModel(settings).train, inputs=rows, targets=rows)
            path = folder / f"{name}-{kind}.nmesh"
            nm.export(program, nm.Mesh(one=1), "").save(path)
            print(path, flush=True)


@functools.cache
def draw_language() -> np.ndarray:
    """Draw the tokens that may follow each two."""
    return np.random.default_rng(0).integers(0, VOCAB, (VOCAB, VOCAB, CHOICES), np.int32)


@functools.cache
def read_text(path: pathlib.Path) -> np.ndarray:
    """Read the bytes of a text, compressed or not."""
    content = path.read_bytes()
    content = lzma.decompress(content) if path.suffix == ".xz" else content
    return np.frombuffer(content, np.uint8).astype(np.int32)


def draw_rows(
    rng: np.random.Generator, batch: int, length: int, text: pathlib.Path | None = None
) -> dict[str, np.ndarray]:
    """Draw rows of a text, or of the language, and what follows each of their tokens."""
    if text is not None:
        read = read_text(text)
        first = rng.integers(0, len(read) - length, (batch, 1))
        tokens = read[first + np.arange(length + 1)]
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    table = draw_language()
    tokens = rng.integers(0, VOCAB, (batch, length + 1), np.int32)
    # Of the four that may follow two tokens, the first is as likely as the rest together.
    choices = np.minimum(rng.geometric(0.5, (batch, length + 1)) - 1, CHOICES - 1)
    for i in range(2, length + 1):
        tokens[:, i] = table[tokens[:, i - 2], tokens[:, i - 1], choices[:, i]]
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def load(folder: pathlib.Path, name: str, kinds: list[str]) -> dict[str, Any]:
    """Compile the Artifacts of a model, all at once: compiling takes most of the time."""
    from namedmesh.runtime import Artifact, Executable

    def compile_kind(kind: str) -> Executable:
        start = time.perf_counter()
        made = Executable(Artifact.load(folder / f"{name}-{kind}.nmesh"), strict=False)
        print(f"{name} {kind}: compiled in {time.perf_counter() - start:.0f} s", flush=True)
        return made

    with ThreadPoolExecutor() as pool:
        return dict(zip(kinds, pool.map(compile_kind, kinds), strict=True))


def time_steps(folder: pathlib.Path, name: str, kinds: list[str]) -> list[dict[str, Any]]:
    """Return a row for each kind: the median of steps that take turns, their losses fetched."""
    batch = draw_rows(np.random.default_rng(1), *MODELS[name][-2:])
    runs = load(folder, name, kinds)
    states = {kind: executable.init(seed=0) for kind, executable in runs.items()}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for i in range(TIMED + 2):
        for kind, executable in runs.items():
            start = time.perf_counter()
            states[kind], results = executable(states[kind], **batch)
            assert np.isfinite(_loss_of(results))
            if i >= 2:
                times[kind].append(time.perf_counter() - start)
    medians = {kind: statistics.median(seconds) for kind, seconds in times.items()}
    tokens = batch["inputs"].size
    return [
        {
            "kind": kind,
            "ms": 1e3 * seconds,
            "tokens_per_second": tokens / seconds,
            "of_bfloat16": medians[kinds[0]] / seconds,
        }
        for kind, seconds in medians.items()
    ]


def draw_curve(
    executable: Any, name: str, steps: int, seed: int, text: pathlib.Path | None
) -> np.ndarray:
    """Return the losses of a run."""
    state, losses, rng = executable.init(seed=0), [], np.random.default_rng(seed)
    rows = draw_rows(rng, *MODELS[name][-2:], text)
    for _ in range(steps):
        state, results = executable(state, **rows)
        rows = draw_rows(rng, *MODELS[name][-2:], text)  # while the device takes the step
        losses.append(_loss_of(results))
    return np.array(losses)


def compare_curves(
    folder: pathlib.Path, name: str, kinds: list[str], steps: int, text: pathlib.Path | None
) -> list[dict[str, Any]]:
    """Return a row for each kind: how far means of some steps lie from those of bfloat16."""
    window, plain, rows = min(WINDOW, steps // 2), np.zeros(0), []
    runs = load(folder, name, kinds)
    for kind, seed in ((kinds[0], 2), (kinds[0], 3), *((one, 2) for one in kinds[1:])):
        losses = draw_curve(runs[kind], name, steps, seed, text).reshape(-1, window).mean(1)
        plain = losses if not plain.size else plain
        rows.append(
            {
                "kind": kind + (", other rows" if seed == 3 else ""),
                "loss": losses[-1],
                "at_the_end": losses[-1] / plain[-1] - 1,
                "at_most": float(np.abs(losses / plain - 1).max()),
                "losses": losses.round(5).tolist(),
            }
        )
        print(rows[-1], flush=True)
    return rows


def _describe(arguments: argparse.Namespace) -> str:
    """Return the command that measures so."""
    words = ["python -m benchmarks.gpu.eight_bits measure FOLDER", "--kinds", *arguments.kinds]
    words += ["--steps", str(arguments.steps), *(["--text FILE"] if arguments.text else [])]
    return " ".join([*words, "--json OUT"])


def _loss_of(results: Any) -> float:
    """Return the loss among a step's results."""
    return float(np.asarray(results["loss"]))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task", choices=("export", "measure"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", nargs=2, default=["stack", "curve"], help="timed, and trained")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="beside bfloat16")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--text", type=pathlib.Path, help="what the curve's model learns")
    parser.add_argument("--json", type=pathlib.Path, help="the file of the result")
    arguments = parser.parse_args()
    if arguments.task == "export":
        export(arguments.folder, sorted({*arguments.models}))
        return
    import jax

    timed, trained = arguments.models
    kinds = [KINDS[0], *(kind for kind in arguments.kinds if kind != KINDS[0])]
    result: dict[str, Any] = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "command": _describe(arguments),
    }
    curves = functools.partial(compare_curves, arguments.folder, trained, kinds, arguments.steps)
    tables = {"curves": lambda: curves(arguments.text)}
    if arguments.text is None:  # a text changes no step's time
        tables = {"stack": lambda: time_steps(arguments.folder, timed, kinds), **tables}
    for table, measure in tables.items():
        result[table] = measure()
        print(json.dumps(result[table]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
