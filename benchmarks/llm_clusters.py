"""Train steps of published models on clusters that are not here, under layouts that are searched.

python -m benchmarks.llm_clusters compile [NAME ...]   makes the rows that are missing
python -m benchmarks.llm_clusters table                writes README.md of them

A row is a model of examples/llm on a cluster: `nm.search` finds its mesh, layout and layout at
rest, the step is exported (which needs TensorFlow) and compiled by the real compiler of those
devices (namedmesh[gpu-aot]; libtpu), and its collectives are audited against the plan. What is
searched and how seconds and MFU come about, README.md says. A row has a process of its own with a
limit of time, and is put into the file of --json as soon as it is done, with what went wrong if it
went wrong; an interrupted run goes on with those that are missing. A NAME stands for all cases that
begin with it, which are then made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from benchmarks.times.table import TABLE, Inexpressible, Step, read_step, read_table
from examples.llm.architecture import Architecture
from examples.llm.model import train_program
from examples.llm.settings import Settings
from examples.llm.sizes import published
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.chips import CHIPS
from namedmesh.hardware.hardware import Hardware, network_of
from namedmesh.hardware.topology import Target

RESULTS = pathlib.Path(__file__).parent / "results" / "llm"
CALIBRATED = {"h200": RESULTS.parent / "times" / "h200.yaml"}  # by `namedmesh calibrate`
CAPACITY = 1.25  # room of an expert, as a multiple of its even share
ROOM = 0.85  # the share of the memory that a plan may take: compilers need more than plans say
# Of compilers: what kernels may take of a core's vector memory. On TPU v5p the backward pass of
# attention of 4,096 keys needs more than the default.
OPTIONS = {"tpu-v5p": {"xla_tpu_scoped_vmem_limit_kib": "65536"}}
SMALL = 64 * 2**30  # bytes of a device's memory, below which more is searched that saves some
TRIES = 3  # layouts that are compiled, the fastest first, until one fits
PLANS = {"dense": 64, "mixture": 40}  # of a search: those of mixtures take seconds each
_COLUMNS = (
    "model", "target", "devices", "tokens", "layout", "as planned", "GiB", "s", "exposed s",
    "MFU, predicted", "MFU of others, measured",
)  # fmt: skip

_UNLIKE = "Not as planned, with the seconds of what the compiler made (at most 20 are listed):"


@dataclass(frozen=True)
class Case:
    """A published model, the cluster, and the rows of tokens of a step."""

    model: str
    target: str
    batch: int
    length: int

    @property
    def name(self) -> str:
        """The name of the row."""
        return f"{self.model}-{self.target.replace(':', '_')}"

    @property
    def place(self) -> Target:
        """The cluster."""
        return Target.parse(self.target)

    @property
    def architecture(self) -> Architecture:
        """What the model is made of; DeepSeek-V3 is trained with one further prediction."""
        shape = published(self.model)
        return shape.but(predictions=1) if shape.family == "deepseek_v3" else shape

    @property
    def axes(self) -> int:
        """How many axes a mesh may have: three of a mixture are millions of candidates."""
        return 2 if self.architecture.experts else 3

    def hardware(self) -> Hardware:
        """Return the figures of the cluster's devices: calibrated ones where there are some."""
        path = CALIBRATED.get(self.place.generation or self.target.partition(":")[0])
        if path is None:
            return Hardware.parse(self.target)
        return dataclasses.replace(
            Hardware.parse(path), name=self.target, network=network_of(self.place)
        )

    def make(
        self,
        remat: str,
        row: bool,
        routed: bool = False,
        offload: bool = False,
        loss_chunks: int = 1,
    ) -> nm.Program:
        """Trace the train step.

        Args:
            remat: What the backward pass computes again in each layer.
            row: Whether tokens between the parts of a layer have a name of their own, so that they
                may be sharded otherwise there (sequence parallel).
            routed: Whether rows of a batch have another name for experts (parallel folding).
            offload: Whether what layers store waits in the memory of the host.
            loss_chunks: In how many chunks of a row logits and loss are made.
        """
        names = [name for name, wanted in (("row", row), ("routed", routed)) if wanted]
        layout = ", ".join(f"{name}:axis{i}" for i, name in enumerate(names)) or "model:axis0"
        mesh = ", ".join(f"axis{i}=2" for i in range(max(1, len(names))))
        return train_program(
            Settings(
                self.architecture, capacity_factor=CAPACITY, batch=self.batch, length=self.length,
                remat=remat, dtype="bfloat16", mesh=mesh, layout=layout, offload=offload,
                loss_chunks=loss_chunks,
            )
        )  # fmt: skip

    def choices(self) -> dict[str, list[Any]]:
        """Return what is searched besides meshes and layouts."""
        choices: dict[str, list[Any]] = {"remat": ["none", "dots", "full"], "row": [False, True]}
        if self.hardware().memory_bytes < SMALL:
            choices |= {"remat": ["full"], "offload": [False, True], "loss_chunks": [1, 8]}
        return choices | ({"routed": [False, True]} if self.architecture.experts else {})


CASES = {
    case.name: case
    for case in (
        Case("llama-3.1-8b", "h200:1x8", 16, 8192),
        Case("llama-3.1-8b", "h200:4x8", 64, 8192),
        Case("llama-3.1-8b", "h200:8x8", 128, 8192),
        Case("llama-3.1-70b", "h200:8x8", 128, 8192),
        Case("llama-3.1-70b", "h200:32x8", 512, 8192),
        Case("llama-3.1-405b", "h200:128x8", 1024, 8192),
        Case("llama-3.1-405b", "h200:256x8", 2048, 8192),
        Case("qwen3-235b-a22b", "h200:32x8", 1024, 4096),
        Case("qwen3-235b-a22b", "h200:128x8", 4096, 4096),
        Case("deepseek-v3", "h200:64x8", 1024, 4096),
        Case("deepseek-v3", "h200:256x8", 4096, 4096),
        Case("llama-3.1-8b", "tpu-v6e:2x4", 16, 8192),
        Case("llama-3.1-70b", "tpu-v6e:4x8", 64, 8192),
        Case("llama-3.1-70b", "tpu-v6e:16x16", 512, 8192),
        Case("llama-3.1-405b", "tpu-v5p:8x8x16", 1024, 8192),
        Case("qwen3-235b-a22b", "tpu-v5p:8x8x8", 1024, 4096),
        Case("deepseek-v3", "tpu-v5p:8x8x16", 2048, 4096),
    )
}


def count_weights(program: nm.Program, a: Architecture) -> tuple[int, int]:
    """Return the weights, and those that a token is multiplied by: chosen experts, no embedding."""
    total = active = 0
    for name, one in program.parameters.items():
        size = one.shape.elements
        total += size
        if name == "embedding" and not a.tied:
            continue
        if a.experts and "expert_hidden" in one.shape.names:
            size = size * a.experts.chosen // a.experts.count
        if name == ("embedding" if a.tied else "output"):
            size *= 1 + a.predictions
        active += size
    return total, active


def count_flops(a: Architecture, active: int, batch: int, length: int) -> float:
    """Return the FLOPs of a step as published MFUs count them.

    Six for each token and active weight, and three times attention's products, also of pairs that
    a causal mask forbids (PaLM's formula); what is computed again does not count.
    """
    scores, values = a.key, a.key
    if a.latent:
        scores, values = a.key + a.latent.rotated, a.latent.value
    width = a.heads * a.group * (scores + values)
    attention = 3.0 * (a.layers + a.predictions) * 2 * width * batch * length**2
    return 6.0 * active * batch * length + attention


def peak_of(target: str) -> float:
    """Return the peak FLOP/s in bfloat16 of all devices."""
    place = Target.parse(target)
    return place.cores * place.chip.tera["bfloat16"] * 1e12 / place.chip.devices


@functools.cache
def read_published() -> tuple[Step, ...]:
    """Return the steps that others published."""
    steps = []
    for row in read_table(TABLE):
        try:
            steps.append(read_step(row))
        except Inexpressible:
            continue
    return tuple(steps)


def find_published(case: Case, active: int) -> list[dict[str, Any]]:
    """Return what others published of the same model on the same chip, nearest sizes first."""
    a, cores = case.architecture, case.place.cores
    sizes = a.layers, a.model, a.vocab, a.experts.count if a.experts else 0
    same = [
        step for step in read_published()
        if (step.layers, step.width, step.vocab, step.experts) == sizes
        and CHIPS[step.chip] is case.place.chip
    ]  # fmt: skip
    rows = []
    for step in sorted(same, key=lambda step: abs(math.log(step.devices / cores))):
        flops = count_flops(a, active, step.batch, step.length)
        peak = step.devices * CHIPS[step.chip].tera["bfloat16"] * 1e12 / CHIPS[step.chip].devices
        rows.append(
            {
                "id": step.id, "source": step.source, "devices": step.devices, "dtype": step.dtype,
                "batch": step.batch, "length": step.length, "seconds": step.measured,
                "mfu": round(flops / (peak * step.measured), 4),
            }
        )  # fmt: skip
    return rows


def describe_case(case: Case) -> dict[str, Any]:
    """Return what is known of a row before anything is searched."""
    return {
        "name": case.name, "model": case.model, "target": case.target,
        "devices": case.place.cores, "batch": case.batch, "length": case.length,
    }  # fmt: skip


def make_row(case: Case, folder: pathlib.Path) -> dict[str, Any]:
    """Search a layout for a case, and compile the fastest that fits."""
    hardware, choices = case.hardware(), case.choices()
    plans = PLANS["mixture" if case.architecture.experts else "dense"]
    options: dict[str, Any] = {"memory": ROOM * hardware.memory_bytes, "plans": plans}
    options |= {"axes": case.axes, "slices": case.place.slices}
    options |= {"resume": folder / f"{case.name}.search.json", "progress": False}
    options |= choices
    found = nm.search(case.make, case.place.cores, hardware, **options)
    print(found, flush=True)
    entries = list(found.front[:TRIES]) or list(found.too_large[-1:])
    if not entries:
        fix = "give the model more devices, or fewer tokens to each"
        raise NamedMeshError("nothing can be planned", *found.refusals, fix=fix)
    row, refused = {}, []
    for entry in entries:
        try:
            row = compile_entry(case, entry, hardware)
        except NamedMeshError as error:
            print(error, flush=True)
            refused.append(f"{entry!r}: {error.problem}")
            continue
        if row["fits"]:
            break
        refused.append(f"{entry!r}: {row['gib']} GiB by the compiler")
    if not row:
        fix = "compile them with namedmesh aot, one by one"
        raise NamedMeshError("none of the layouts compiles: " + "; ".join(refused), fix=fix)
    searched = {
        "enumerated": found.enumerated, "planned": found.planned,
        "seconds": round(found.elapsed, 1), "choices": choices,
    }  # fmt: skip
    return {**row, "not_taken": refused, "search": searched}


def compile_entry(case: Case, entry: Any, hardware: Hardware) -> dict[str, Any]:
    """Export, compile and audit one of the layouts that a search found."""
    import jax

    from namedmesh.aot.compilation import compile_for
    from namedmesh.lowering.export import export_planned

    plan = entry.plan()
    artifact = export_planned(plan)
    options = OPTIONS.get(case.target.partition(":")[0])
    report = compile_for(artifact, case.target, name=case.model, hardware=hardware, options=options)
    print(report, flush=True)
    audit, timeline, a = report.audit, report.timeline, case.architecture
    weights, active = count_weights(entry.program, a)
    flops = count_flops(a, active, case.batch, case.length)
    seconds = timeline.seconds if timeline else entry.seconds
    return {
        **describe_case(case),
        "weights": weights,
        "active": active,
        "mesh": str(plan.mesh),
        "layout": entry.layout.text,
        "params": None if entry.params is None else entry.params.text,
        "choices": dict(entry.choices),
        "conflicts": entry.conflicts,
        "collectives": len(artifact.collectives),
        "exact": bool(audit and audit.exact),
        "problems": audit.describe_problems()[:20] if audit else ["no code to read"],
        "rules": dict(audit.rules) if audit else {},
        "fits": report.fits,
        "gib": round((report.peak_bytes or 0) / 2**30, 2),
        "hbm_gib": round((report.hbm_bytes or 0) / 2**30, 2),
        "estimated_gib": round(entry.memory_bytes / 2**30, 2),
        "seconds": round(seconds, 4),
        "exposed_seconds": round(timeline.exposed_seconds, 4) if timeline else None,
        "collective_seconds": round(timeline.collective_seconds, 4) if timeline else None,
        "estimated_seconds": round(entry.seconds, 4),
        "flops": flops,
        "mfu": round(flops / (peak_of(case.target) * seconds), 4),
        "tokens_per_second_per_device": round(
            case.batch * case.length / seconds / case.place.cores, 1
        ),
        "recomputed": round(sum(report.recomputed.values()), 4),
        "published": find_published(case, active),
        "compile_seconds": round(report.compile_seconds, 1),
        "jax": jax.__version__,
    }


def compile_all(options: argparse.Namespace) -> bool:
    """Make rows, each in a process of its own; return whether all are as planned and fit."""
    rows = read_rows(options.json)
    done = {name for name, row in rows.items() if "why" not in row}
    names = [name for name in CASES if options.names and name.startswith(tuple(options.names))]
    for name in names or [name for name in CASES if name not in done]:
        part = options.folder / f"{name}.json"
        part.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.llm_clusters", "one", name]
        command += ["--folder", str(options.folder), "--json", str(part)]
        with open(options.folder / f"{name}.log", "w") as log:
            start, why = time.monotonic(), ""
            try:
                status = run_limited(command, log, options.limit)
                why = "" if part.is_file() else f"it ended with status {status}"
            except subprocess.TimeoutExpired:
                why = f"not done in {options.limit:g} s"
        row = {**describe_case(CASES[name]), "why": why}
        if part.is_file():
            row = json.loads(part.read_text())
        row["row_seconds"] = round(time.monotonic() - start, 1)
        rows = read_rows(options.json) | {name: row}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        ordered = [rows[one] for one in CASES if one in rows]
        options.json.write_text(json.dumps(ordered, indent=1) + "\n")
        print(f"{name}: {describe_outcome(row)} (see {log.name})", flush=True)
    rows = read_rows(options.json)
    return all(row.get("exact") and row.get("fits") for row in rows.values())


def run_limited(command: Sequence[str], log: Any, limit: float) -> int:
    """Run a command and return its status; at the limit end it with all that it has started."""
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        return process.wait(limit)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def read_rows(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by name."""
    return {row["name"]: row for row in json.loads(path.read_text())} if path.is_file() else {}


def describe_outcome(row: dict[str, Any]) -> str:
    """Say in a few words what became of a row."""
    if "why" in row:
        return row["why"]
    room = f"{row['gib']} of {row['hbm_gib']} GiB{'' if row['fits'] else ', too much'}"
    return f"{'as planned' if row['exact'] else 'NOT as planned'}, {room}, MFU {row['mfu']:.1%}"


def format_row(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    tokens = row["batch"] * row["length"]
    head = [row["model"], row["target"], f"{row['devices']:,}", f"{tokens / 2**20:.3g} Mi"]
    if "why" in row:
        return [*head, f"not compiled: {row['why']}", *[""] * 6]
    choices = row["choices"]
    where = f"`{row['mesh'].removeprefix('Mesh(').removesuffix(')')}` `{row['layout']}`"
    where += f", at rest `{row['params']}`" if row["params"] else ""
    where += f", remat {choices['remat']}"
    where += ", offloaded" if choices.get("offload") else ""
    chunks = choices.get("loss_chunks", 1)
    where += f", loss in {chunks} chunks" if chunks > 1 else ""
    others = "none"
    if row["published"]:
        one = row["published"][0]
        others = f"{one['mfu']:.1%} on {one['devices']:,} ({one['dtype']}, {one['id']})"
    return [
        *head,
        where,
        f"all {row['collectives']}" if row["exact"] else "**no**",
        f"{row['gib']} of {row['hbm_gib']}{'' if row['fits'] else ': too much'}",
        f"{row['seconds']:.2f}",
        f"{row['exposed_seconds']:.2f}" if row["exposed_seconds"] is not None else "",
        f"{row['mfu']:.1%}",
        others,
    ]


def format_readme(rows: Sequence[dict[str, Any]]) -> str:
    """Return what a reader should know, and the rows as a table."""
    good = [row for row in rows if "why" not in row]
    exact, fits = (sum(bool(row[name]) for row in good) for name in ("exact", "fits"))
    tables = "\n".join(f"| {' | '.join(format_row(row))} |" for row in rows)
    head = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"
    versions = " and ".join(sorted({row["jax"] for row in good}))
    sources = {
        one["id"]: one["source"] for row in good for one in row["published"][:1]
    }  # of those in the table
    listed = "\n".join(f"- {name}: {source}" for name, source in sources.items())
    unlike = "\n".join(
        f"- {row['name']}: {'; '.join(row['problems'][:2])}; {len(row['problems'])} in all"
        for row in good
        if not row["exact"]
    )
    unlike = f"\n{_UNLIKE}\n\n{unlike}\n" if unlike else ""
    return f"""# Published models

`families.json` compares every family with transformers (`python -m benchmarks.llm_families`).

## On clusters that are not here

```bash
python -m benchmarks.llm_clusters compile   # the missing rows; needs TensorFlow, gpu-aot, libtpu
python -m benchmarks.llm_clusters table     # this page
```

Whole train steps of `examples/llm` (float32 weights and Adam's moments, bfloat16 activations),
compiled by XLA's compilers for those devices with jax {versions} on a machine that has none of
them: {exact} of {len(good)} that compiled are exactly as planned, {fits} fit. `clusters.json` has
all fields.

- **Layout**: the fastest that `nm.search` finds and that fits by the compiler, too. It chooses
  meshes of up to three axes (of mixtures up to two: three axes are millions of candidates),
  layouts of every dimension of the program and layouts at rest, whether the backward pass computes
  nothing again, all but products, or whole layers, sequence parallelism, and for mixtures other
  axes for experts than for attention; on TPU v6e, of 31 GiB, also whether what layers store waits
  in the host's memory, and the logits in chunks. It plans {PLANS["dense"]} candidates, of mixtures
  {PLANS["mixture"]}, neighbours of the best among them, of those that it enumerates (`search` of a
  row). Pipelines and accumulation it does not try.
- **Mixtures** route within a row of tokens; an expert has room for {CAPACITY} of its even share.
  DeepSeek-V3 has its further prediction.
- **s, exposed s**: by the compiled schedule (`namedmesh.schedule`). On H200s ops are priced by
  what one of them measured ([h200.yaml](../times/h200.yaml); these rows are of before it had
  `kernel_row`, with 7% too much for attention of 8,192 tokens), on TPU v5p by the compiler's own
  cycles, on TPU v6e by built-in figures; kernels are not tuned. On TPUs attention is a kernel of
  ours that no TPU has run: no TPU was at hand, and its products are priced at 0.6 of the peak,
  which is assumed. Exposed is what a device waits for collectives; in these rows XLA for TPUs
  starts none ahead of what reads it, and all are waited for.
- **TPU v5p** has no rows yet. In tiles of 1,024 the kernel's backward pass took more vector memory
  for 4,096 keys than the compiler allows (Qwen3 235B was refused); it has tiles of 512 there now,
  and nothing was compiled to its end since. With 64 MiB allowed (`OPTIONS`), Llama 405B on 1,024
  was not done in 1,000 s. What its compiler had scheduled is not as planned: 12 AllGathers of
  weights in shards of 16 columns are AllReduces of what is zero elsewhere, of twice the bytes on
  the wire, and Qwen's of embeddings in shards of 8 on 512, too.
- **MFU** as it is published, of the peak in bfloat16: six FLOPs for each token and weight that it
  is multiplied by (chosen experts alone, no embedding), and attention's products, of pairs that
  the causal mask forbids too (PaLM's formula, and MaxText's and torchtitan's); what is computed
  again does not count.
- **Others**: the same model on the same chip, and the nearest number of devices, in
  `benchmarks/times/published_times.tsv`, by the same count of FLOPs and the same peak, in float8
  too. `none` where that table has nothing.

{head}
{tables}
{unlike}
{listed}
"""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("compile", "one", "table"))
    parser.add_argument("names", nargs="*", help="such as llama-3.1-8b: all that begin so")
    parser.add_argument("--json", type=pathlib.Path, default=RESULTS / "clusters.json")
    folder = pathlib.Path(tempfile.gettempdir()) / "llm_clusters"
    parser.add_argument("--folder", type=pathlib.Path, default=folder, help="of logs and searches")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of one row")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.action == "table":
        rows = json.loads(options.json.read_text())
        options.json.with_name("README.md").write_text(format_readme(rows))
    elif options.action == "compile":
        sys.exit(not compile_all(options))
    else:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        from namedmesh.aot.absent_devices import prepare_target

        (name,) = options.names
        prepare_target(CASES[name].place)
        try:
            row = make_row(CASES[name], options.folder)
        except NamedMeshError as error:
            print(error, flush=True)
            row = {**describe_case(CASES[name]), "why": error.problem}
        options.json.write_text(json.dumps(row))


if __name__ == "__main__":
    main()
