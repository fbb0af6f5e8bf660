"""The time of a step on a GPU: the kernels of a profiler trace, summed by kind.

A kernel is matched with the instruction of the compiled program that launched it, which says what
it computes and which op it was compiled from.
"""

from __future__ import annotations

import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.llama import Llama
from benchmarks.gpu.models import Model
from namedmesh.audit.hlo import Computation, Instruction, parse_module

KINDS = ("matrix products", "attention", "loops", "optimizer", "embedding", "other")
PRODUCTS = re.compile(r"gemm|nvjet|cutlass|xmma|cublas", re.IGNORECASE)
ATTENTION = re.compile(r"attention_(forward|backward)|fmha|sdpa|flash", re.IGNORECASE)
OPTIMIZER = re.compile(r"multi_tensor|adam", re.IGNORECASE)  # of torch, outside its graph
LOOPS = ("while", "conditional", "dynamic-slice", "dynamic-update-slice")
SCOPE = re.compile(r"\b(attend|optimize)\b")  # of benchmarks.gpu.jax_model
NUMBERED = re.compile(r"\bnm\.(\w+)\.(\d+)\b")  # an op of namedmesh and its place in the program


@dataclass(frozen=True)
class Launch:
    """One run of a kernel: its name, the instruction that launched it, and its nanoseconds."""

    kernel: str
    instruction: str
    start: float
    end: float


class Classifier:
    """Tells the kinds of a program's kernels.

    Attention is what lies between its projections: the products of scores and averages, softmax and
    dropout. A program of namedmesh whose attention has no kernel of its own does not name these;
    they count as matrix products and other.

    Args:
        text: The compiled program; empty for torch's, whose kernels have nothing but names: all
            that its compiler made count as other.
        model: Its model, by whose vocabularies the embedding's lookups are known.
    """

    def __init__(self, text: str, model: Model | Llama):
        self._computations = parse_module(text).computations if text else {}
        self._tables = {(vocabulary, model.model) for vocabulary in model.vocabularies}
        self._instructions: dict[str, tuple[Instruction, Computation]] = {}
        for computation in self._computations.values():
            for one in computation.instructions.values():
                self._instructions.setdefault(one.name, (one, computation))
                # A kernel has the name of its fusion, without dots and dashes.
                self._instructions.setdefault(re.sub(r"[.-]", "_", one.name), (one, computation))
        # Ops are numbered as they were traced, the optimizer's last; among its first is Adafactor's
        # decay, or Adam's corrections: the only powers in the program.
        matches = [match for match in NUMBERED.finditer(text) if match[1] == "power"]
        self._optimizer_start = min((int(match[2]) for match in matches), default=None)

    def classify(self, kernel: str, instruction: str) -> str:
        """Return the kind of a kernel that an instruction launched."""
        one, computation = self._find(kernel, instruction)
        if one is None or computation is None:
            return self._classify_name(kernel)
        inside = [(one, computation)]
        for name in one.called.get("calls", ()):
            called = self._computations[name]
            inside += [(each, called) for each in called.instructions.values()]
        target = one.attributes.get("custom_call_target", "")
        origin = self._find_origin(one, [each for each, _ in inside])
        if origin == "attention" or ATTENTION.search(f"{kernel} {one.name} {target}"):
            return "attention"
        if PRODUCTS.search(f"{kernel} {target}") or any(each.opcode == "dot" for each, _ in inside):
            return "matrix products"
        roots = {each.opcode for each, _ in inside if each.root or each is one}
        if "dynamic" in one.name or roots & {*LOOPS}:
            return "loops"
        if origin == "optimizer":
            return "optimizer"
        if any(self._is_lookup(*each) for each in inside):
            return "embedding"
        return "other"

    def describe(self, kernel: str, instruction: str) -> str:
        """Return the op that a kernel was compiled from, shortened; empty where unknown."""
        one, _ = self._find(kernel, instruction)
        return one.op_name[-100:] if one else ""

    def find_op(self, kernel: str, instruction: str) -> str:
        """Return the plan's name of the op that a kernel is of; empty where nothing says so.

        Where an instruction has no name of an op, most of what is fused into it decides.
        """
        one, _ = self._find(kernel, instruction)
        if one is None:
            return ""
        fused = [
            each
            for name in one.called.get("calls", ())
            for each in self._computations[name].instructions.values()
        ]
        for names in ([one.op_name], [each.op_name for each in fused]):
            found = [matches[-1] for name in names if (matches := NUMBERED.findall(name))]
            if found:
                return ".".join(Counter(found).most_common(1)[0][0])
        return ""

    def _find(
        self, kernel: str, instruction: str
    ) -> tuple[Instruction, Computation] | tuple[None, None]:
        found = self._instructions.get(instruction) or self._instructions.get(kernel)
        return found or (None, None)

    def _classify_name(self, kernel: str) -> str:
        """Return the kind of a kernel of which nothing but the name is known."""
        if ATTENTION.search(kernel):
            return "attention"
        if PRODUCTS.search(kernel):
            return "matrix products"
        if OPTIMIZER.search(kernel):
            return "optimizer"
        return "loops" if "dynamic" in kernel else "other"

    def _find_origin(self, instruction: Instruction, inside: Iterable[Instruction]) -> str:
        """Return the part of the model that an instruction belongs to.

        Where its own name does not say, most of what is fused into it does.
        """
        own = self._origin_of(instruction.op_name)
        if own is not None:
            return own
        origins = [self._origin_of(each.op_name) for each in inside]
        votes = Counter(origin for origin in origins if origin is not None)
        return votes.most_common(1)[0][0] if votes else "other"

    def _origin_of(self, op_name: str) -> str | None:
        """Return the part of the model that an op belongs to, or None if its name has none."""
        scope = SCOPE.search(op_name)
        if scope:
            return {"attend": "attention", "optimize": "optimizer"}[scope[1]]
        if self._optimizer_start is None:  # JAX by hand, where every part of note has a scope
            return None if not op_name or op_name.endswith("closed_call") else "other"
        numbers = [int(match[2]) for match in NUMBERED.finditer(op_name)]
        if not numbers:
            return None
        return "optimizer" if numbers[-1] >= self._optimizer_start else "other"

    def _is_lookup(self, instruction: Instruction, computation: Computation) -> bool:
        """Return whether an instruction reads rows of a vocabulary's table, or adds to them."""
        if instruction.opcode not in ("gather", "scatter"):
            return False
        first = computation.operand_types(instruction)[:1]
        return any(array.sizes in self._tables for type in first for array in type.arrays)


def read_trace(folder: pathlib.Path) -> Iterator[Launch]:
    """Read the kernels of all GPUs from the folder of a profiler trace."""
    from jax.profiler import ProfileData

    for path in sorted(folder.rglob("*.xplane.pb")):
        for plane in ProfileData.from_file(str(path)).planes:
            if "GPU" not in plane.name:
                continue
            for line in plane.lines:
                if not line.name.startswith("Stream"):
                    continue
                for event in line.events:
                    instruction = dict(event.stats).get("hlo_op") or ""
                    end = event.start_ns + event.duration_ns
                    yield Launch(event.name, str(instruction), event.start_ns, end)


def summarize(launches: list[Launch], classifier: Classifier, steps: int) -> dict[str, Any]:
    """Sum kernels by kind.

    Args:
        launches: The kernels of some steps.
        classifier: What tells their kinds.
        steps: The number of steps.

    Returns:
        Milliseconds of a step: `busy_ms`, in which the GPU ran any kernel, `wall_ms`, `kinds`,
        `ops` by their names in the plan, and the `kernels` that took the most.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for launch in launches:
        key = launch.kernel, launch.instruction
        times.setdefault(key, []).append(launch.end - launch.start)
    scale = 1e-6 / steps
    kinds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    ops: Counter[str] = Counter()
    rows = []
    for (kernel, instruction), nanoseconds in times.items():
        kind, ms = classifier.classify(kernel, instruction), sum(nanoseconds) * scale
        kinds[kind] += ms
        ops[classifier.find_op(kernel, instruction)] += ms  # type: ignore[assignment]
        rows.append(
            {
                "ms": round(ms, 4),
                "runs": round(len(nanoseconds) / steps, 2),
                "kind": kind,
                "kernel": kernel[:80],
                "instruction": instruction,
                "op": classifier.describe(kernel, instruction),
            }
        )
    rows.sort(key=lambda row: row["ms"], reverse=True)
    first = min((launch.start for launch in launches), default=0.0)
    last = max((launch.end for launch in launches), default=0.0)
    return {
        "busy_ms": measure_union(launches) * scale,
        "wall_ms": (last - first) * scale,
        "kinds": {kind: round(ms, 3) for kind, ms in kinds.items()},
        "ops": {name: round(ms, 4) for name, ms in ops.most_common()},
        "kernels": rows[:40],
    }


def measure_union(launches: Iterable[Launch]) -> float:
    """Return the nanoseconds in which at least one kernel ran."""
    busy = end = 0.0
    for launch in sorted(launches, key=lambda launch: launch.start):
        busy += max(launch.end - max(launch.start, end), 0.0)
        end = max(end, launch.end)
    return busy
