"""A language model on one GPU: tokens a second against what its memory allows, and transformers.

python -m benchmarks.gpu.llm_decode export FOLDER              needs TensorFlow, no GPU
python -m benchmarks.gpu.llm_decode measure FOLDER --json OUT  needs a GPU, no TensorFlow
python -m benchmarks.gpu.llm_decode profile FOLDER --json OUT  so; microseconds of a token by kernel

Llama 3.2 1B with its first weights writes after a prompt, always the likeliest token. A token's
least time is what reading takes: the weights once, and the keys and values of all tokens before.
The time of a token is the difference between a long text's and a short one's, over the difference
of their lengths, so that reading the prompt is not in it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

MODEL, PROMPT, SHORT, LONG, TIMED = "llama-3.2-1b", 128, 16, 144, 3
BATCHES = (1, 32, 256)
SYSTEMS = [
    "transformers",
    *(f"namedmesh {how}" for how in ("unrolled", "loop")),
]
BANDWIDTH = 4.8e12  # bytes a second of an H200's memory, by its data sheet
Write = Callable[[np.ndarray], np.ndarray]


def export(folder: pathlib.Path) -> None:
    """Write an Artifact for each batch and length, with layers in a loop and unrolled."""
    import namedmesh as nm
    from examples.llm.adapters import Adapters, Tuning
    from examples.llm.model import LanguageModel
    from examples.llm.settings import Settings
    from examples.llm.sizes import CONFIGS, published
    from namedmesh.layers import Greedy, use_weights

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[MODEL]))
    for name, (batch, length, unroll) in variants().items():
        settings = Settings(
            published(MODEL), batch=batch, length=PROMPT, layout="one", dtype="bfloat16",
            unroll=unroll,
        )  # fmt: skip
        model = LanguageModel(settings)
        P, B, N, T = nm.dims(f"prompt={PROMPT - 1} batch={batch} hypothesis=1 step={length}")

        def write(prompt, last, model=model, rows=(B, N), T=T):
            written = model.write_on(prompt, last, list(rows), T, Greedy())["sequences"]
            return nm.transpose(written, [rows[1], rows[0], T])

        with use_weights(Adapters(Tuning(frozen="bfloat16"), off=True)):
            program = nm.trace(write, nm.spec([B, P], "int32"), nm.spec([B], "int32"))
        path = folder / f"{name}.nmesh"
        nm.export(program, nm.Mesh(one=1), "").save(path)
        print(path, flush=True)


def variants() -> dict[str, tuple[int, int, bool]]:
    """Return the batch, the length and whether layers are unrolled, by names of files."""
    return {
        f"{how}-{batch}-{length}": (batch, length, how == "unrolled")
        for how in ("unrolled", "loop")
        for batch in BATCHES
        for length in (SHORT, LONG)
    }


def measure(folder: pathlib.Path, systems: list[str], batches: list[int]) -> dict[str, Any]:
    """Return a row for each system and batch: medians of whole texts, results fetched."""
    import jax

    rows = []
    for system in systems:
        make = transformers_writers if system == "transformers" else our_writers
        writers, weight_bytes = make(folder, system, batches)
        for batch in batches:
            prompts = np.random.default_rng(0).integers(0, 128_000, (batch, PROMPT), np.int32)
            times: dict[int, list[float]] = {SHORT: [], LONG: []}
            for i in range(TIMED + 1):
                for length in times:
                    start = time.perf_counter()
                    assert writers[batch, length](prompts).shape == (batch, length)
                    if i:
                        times[length].append(time.perf_counter() - start)
            short, long = (statistics.median(times[length]) for length in times)
            seconds = (long - short) / (LONG - SHORT)
            row = {
                "system": system,
                "batch": batch,
                "ms_a_token": 1e3 * seconds,
                "tokens_per_second": batch / seconds,
                "of_the_limit": least_seconds(weight_bytes, batch) / seconds,
                "prompt_ms": 1e3 * (short - SHORT * seconds),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    device = jax.devices()[0].device_kind
    command = "python -m benchmarks.gpu.llm_decode measure FOLDER --json OUT"
    return {"model": MODEL, "rows": rows, "device": device, "command": command}


def least_seconds(weight_bytes: int, batch: int) -> float:
    """Return what reading the weights, keys and values takes for a token of each row."""
    layers, heads, key = 16, 8, 64
    before = PROMPT + (SHORT + LONG) / 2
    cache = 2 * layers * heads * key * 2 * before * batch
    return (weight_bytes + cache) / BANDWIDTH


def our_writers(
    folder: pathlib.Path, system: str, batches: list[int]
) -> tuple[dict[tuple[int, int], Write], int]:
    """Return functions that write with Artifacts, by batch and length, and the weights' bytes."""
    from namedmesh.runtime import Artifact, Executable, State

    def load(kind: tuple[int, int]) -> Executable:
        path = folder / f"{system.split()[1]}-{kind[0]}-{kind[1]}.nmesh"
        return Executable(Artifact.load(path), strict=False)

    kinds = [(batch, length) for batch in batches for length in (SHORT, LONG)]
    with ThreadPoolExecutor() as pool:  # compiling takes most of the time
        executables = dict(zip(kinds, pool.map(load, kinds), strict=True))
    arrays = executables[kinds[0]].init(seed=0).arrays

    def writer(executable: Executable) -> Write:
        state = State(arrays, executable.variables)
        return lambda prompts: np.asarray(executable(state, prompts[:, :-1], prompts[:, -1])[1])[0]

    size = sum(array.nbytes for array in arrays.values())
    return {kind: writer(executable) for kind, executable in executables.items()}, size


def profile(folder: pathlib.Path, system: str, batch: int) -> dict[str, Any]:
    """Return how long a token's kernels run, by their names without numbers and their lengths."""
    import jax

    from benchmarks.gpu.kernels import read_trace

    writers, _ = our_writers(folder, system, [batch])
    prompts = np.random.default_rng(0).integers(0, 128_000, (batch, PROMPT), np.int32)
    writers[batch, LONG](prompts)
    start = time.perf_counter()
    writers[batch, LONG](prompts)
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as trace:
        with jax.profiler.trace(trace):
            writers[batch, LONG](prompts)
        launches = list(read_trace(pathlib.Path(trace)))
    kinds: dict[str, list[float]] = {}
    for one in launches:
        micros = (one.end - one.start) / 1e3
        name = re.sub(r"(_\d+)+$", "", one.kernel)
        kinds.setdefault(f"{name}, {float(f'{micros:.1g}'):g} us", []).append(micros)
    ordered = sorted(kinds.items(), key=lambda item: -sum(item[1]))
    return {
        "system": system,
        "batch": batch,
        "us_a_token": 1e6 * seconds / LONG,
        "busy_us_a_token": sum(map(sum, kinds.values())) / LONG,
        "kernels_a_token": len(launches) / LONG,
        "kinds": {name: [len(every) / LONG, sum(every) / LONG] for name, every in ordered[:20]},
    }


def transformers_writers(
    folder: pathlib.Path, system: str, batches: list[int]
) -> tuple[dict[tuple[int, int], Write], int]:
    """Return functions that write with transformers, by torch, and the weights' bytes."""
    import torch  # pyright: ignore[reportMissingImports]
    from transformers import (  # pyright: ignore[reportMissingImports]
        LlamaConfig,
        LlamaForCausalLM,
    )

    config = json.loads((folder / "config.json").read_text())
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(LlamaConfig(**config))
        model.to(torch.bfloat16).eval()

    def writer(length: int) -> Write:
        def write(prompts: np.ndarray) -> np.ndarray:
            tokens = torch.tensor(prompts, device="cuda", dtype=torch.long)
            with torch.inference_mode():
                written = model.generate(
                    tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                    min_new_tokens=length, max_new_tokens=length, pad_token_id=0,
                )  # fmt: skip
            return written[:, tokens.shape[1] :].cpu().numpy()

        return write

    weights = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}
    kinds = [(batch, length) for batch in batches for length in (SHORT, LONG)]
    return {kind: writer(kind[1]) for kind in kinds}, sum(weights.values())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task", choices=("export", "measure", "profile"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path, help="the file of the result")
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, help="which to measure")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    arguments = parser.parse_args()
    if arguments.task == "export":
        export(arguments.folder)
        return
    if arguments.task == "profile":
        ours = [system for system in arguments.systems if system != "transformers"]
        pairs = [(system, batch) for system in ours for batch in arguments.batches]
        result: Any = [profile(arguments.folder, *pair) for pair in pairs]
    else:
        result = measure(arguments.folder, arguments.systems, arguments.batches)
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
