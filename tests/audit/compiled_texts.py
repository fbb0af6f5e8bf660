"""Modules that XLA compiled for GPUs, kept with their plans: text that needs no compiler to audit.

Those of large steps for TPUs (tpu_...) are cut down to some collectives, what makes and what reads
them.

    python -m tests.audit.compiled_texts NAME STEP.nmesh h100:1x8 xla_gpu_...=true

compiles a step and keeps what was made of it under a name.

    python -m tests.audit.compiled_texts tamper [NAME ...]

tampers with all of them, or some, in every way; how many edits the audit noticed is in
benchmarks/results/gpu_clusters/tampered_texts.json.
"""

from __future__ import annotations

import functools
import json
import lzma
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from benchmarks.tampering import TAMPERINGS, Edit, Text, keep_meaning
from namedmesh.aot import compilation, compile_for
from namedmesh.artifacts.artifact import Artifact
from namedmesh.audit.audit import audit
from namedmesh.audit.hlo.module import Module, _Parser, parse_module
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.records.codec import read_value, write_value
from namedmesh.records.collective import Collective
from namedmesh.runtime import Audit

Tampering = Callable[[Text], Iterator[Edit]]
FOLDER = pathlib.Path(__file__).parent / "compiled"
RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_clusters"
TAMPERED = RESULTS / "tampered_texts.json"
# What the audit does not read: schedules, places in source files, kernels, shardings, tables.
_UNREAD = re.compile(
    r' (?:scheduling_name|deduplicated_name)="[^"]*"| stack_frame_id=\d+|, sharding=\{[^}]*\}+'
    r"|, backend_config=(?!\{[^\n]*known_trip_count)\{.*$|, algorithm=\w+",
    re.MULTILINE,
)
_TRIPS = re.compile(r', backend_config=\{.*?("known_trip_count":\{"n":"\d+"\}).*$', re.MULTILINE)


def keep(name: str, artifact: Artifact, text: str) -> None:
    """Keep a module and its plan."""
    text = _TRIPS.sub(r", backend_config={\1}", _UNREAD.sub("", text))
    head, _, body = text.partition("\n\n")
    body = "\n\n".join(part for part in body.split("\n\n") if "{\n" in part)
    record = {
        "mesh": write_value(artifact.mesh),
        "precision": artifact.precision,
        "ops": [*artifact.ops],
        "collectives": write_value([one.without_folder() for one in artifact.collectives]),
        "text": f"{head.splitlines()[0]}\n\n{body}",
    }
    FOLDER.mkdir(exist_ok=True)
    packed = lzma.compress(json.dumps(record).encode(), preset=9)
    (FOLDER / f"{name}.json.xz").write_bytes(packed)


def read(name: str) -> dict:
    """Read what was kept under a name: its mesh, its planned collectives, its text."""
    record = json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))
    record["mesh"] = read_value(record["mesh"], Mesh)
    record["collectives"] = read_value(record["collectives"], tuple[Collective, ...])
    return record


def audit_kept(
    record: dict,
    text: str | None = None,
    backend: str = "gpu",
    parse: Callable[[str], Module] = parse_module,
) -> Audit:
    """Audit a text that was kept, or another in its place."""
    module = parse(record["text"] if text is None else text)
    known = {"precision": record["precision"], "ops": record["ops"]}
    return audit(module, record["mesh"], record["collectives"], backend=backend, **known)


def tamper(
    record: dict, backend: str, every: int = 1, tamperings: Sequence[Tampering] = TAMPERINGS
) -> tuple[int, list[str], list[str]]:
    """Edit a text; return how many edits change what it sends, those missed and false alarms."""
    mesh = record["mesh"]
    text, parser = Text(record["text"], mesh.one_block(mesh.slices)), _Parser()
    # Edits change few lines.
    parser.instruction = functools.cache(parser.instruction)

    def read_edit(edit: Edit) -> Audit | None:
        try:
            return audit_kept(record, edit.text, backend, parser.module)
        except NamedMeshError:
            return None

    as_compiled, *harmless = keep_meaning(text)
    original = read_edit(as_compiled)
    assert original is not None
    problems, times = original.describe_problems(), _count_open_ended(original)
    edits = [edit for tampering in tamperings for edit in tampering(text)][::every]
    count, missed = len(edits), []
    for edit in edits:
        found = read_edit(edit)
        if found is not None and found.describe_problems() == problems:
            # The plan does not know how often some loops run.
            of_plan = _count_open_ended(found) == times
            missed += [edit.kind] * of_plan
            count -= not of_plan
    facts = [_without_name(one) for one in problems]
    alarms = []
    for edit in harmless:
        found = read_edit(edit)
        if found is None or [_without_name(one) for one in found.describe_problems()] != facts:
            alarms.append(edit.kind)
    return count, missed, alarms


def _count_open_ended(result: Audit) -> list[tuple[str, int]]:
    """Return how often collectives run that the plan counts by the iteration of a loop."""
    return sorted((plan.op, one.times) for plan, one in result.matched if plan.open_ended)


def _without_name(problem: str) -> str:
    """Return a problem without the name of its op."""
    return problem.partition(", from ")[0]


def check_tampering(
    record: dict, backend: str, every: int = 1, tamperings: Sequence[Tampering] = TAMPERINGS
) -> None:
    """Check that some edits that change what a module sends are noticed, and no others."""
    _, missed, alarms = tamper(record, backend, every, tamperings)
    assert not missed and not alarms


def tamper_all(names: list[str]) -> None:
    """Tamper with texts; print and write what was noticed of each."""
    for path in sorted(FOLDER.glob("*.json.xz")):
        name = path.name.partition(".")[0]
        if not names or name in names:
            backend = "tpu" if name.startswith("tpu_") else "gpu"
            count, missed, alarms = tamper(read(name), backend)
            print(f"{name}: {count - len(missed)} of {count}", *missed, *alarms, flush=True)
            rows = json.loads(TAMPERED.read_text()) if TAMPERED.is_file() else {}
            rows[name] = {"backend": backend, "edits": count, "missed": missed, "alarms": alarms}
            TAMPERED.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")


def compile_text(artifact: Artifact, target: str, options: dict[str, str]) -> tuple[Artifact, str]:
    """Compile for a target; return the step as its devices are numbered, and its text."""
    texts: list[str] = []
    parse = compilation.parse_module
    compilation.parse_module = lambda text: (texts.append(text), parse(text))[1]
    try:
        report = compile_for(artifact, target, options=options)
    finally:
        compilation.parse_module = parse
    return artifact.with_device_assignment(report.assignment.order), texts[0]


if __name__ == "__main__":
    if sys.argv[1:2] == ["tamper"]:
        tamper_all(sys.argv[2:])
        sys.exit()
    name, path, target, *flags = sys.argv[1:]
    options = dict(flag.split("=", 1) for flag in flags)
    keep(name, *compile_text(Artifact.load(path), target, options))
    print(audit_kept(read(name), backend="tpu" if name.startswith("tpu_") else "gpu"))
