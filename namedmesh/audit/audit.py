"""The audit: compiled collectives against planned ones, and the report about them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from namedmesh.audit.backend_rules import NEEDLESS, find_rules
from namedmesh.audit.hlo.communication import OTHER, CompiledCollective, find_collectives
from namedmesh.audit.hlo.module import Module
from namedmesh.audit.matching import Matching, match_collectives, merge_needless, names_in
from namedmesh.audit.slices import match_slices
from namedmesh.dims.mesh import Mesh
from namedmesh.display.html import html_block, html_details, html_table, html_text
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.errors.source import Source, warn_caller
from namedmesh.records.collective import Collective

_ENCLOSING = "/namedmesh/"  # jax prefixes the names of a module's ops: jit(...)/namedmesh/


@dataclass
class Audit(Matching):
    """The collectives of a plan, compared with those of the compiled code.

    Attributes:
        matched: Planned collectives, each with the one the compiler made for it.
        merged: Planned collectives that were made as a part of a matched one, or are needless.
        helpers: Compiled collectives that complete a matched one, by a rule of the backend.
        unplanned: Compiled collectives that the plan does not have.
        missing: Planned collectives that the compiler did not make.
        differences: Planned collectives that the compiler made otherwise.
        by_shape: Those of `matched` that agree on everything, but that no metadata connects.
        rules: The number of uses of each rule of the backend, by its name.

    Example:
        >>> from namedmesh.audit.hlo import CompiledCollective
        >>> from namedmesh.runtime import Audit
        >>> unplanned = CompiledCollective("AllReduce", ("data",), 8, "float32", "nm.sum.1", "r")
        >>> print(Audit(unplanned=[unplanned]))
        audit: 0 as planned, 1 unplanned, 0 not made
          unplanned AllReduce over data of 8 float32 elements, from nm.sum.1
    """

    @property
    def exact(self) -> bool:
        """True if plan and code agree on every collective, up to the rules of the backend."""
        return not self.unplanned and not self.missing and not self.differences

    @property
    def compiled(self) -> list[CompiledCollective]:
        """All collectives of the compiled code."""
        pairs = [*self.matched, *((one.planned, one.compiled) for one in self.differences)]
        return [*(one for _, one in pairs), *self.helpers, *self.unplanned]

    def describe_compiled(self) -> Iterator[tuple[CompiledCollective, Collective]]:
        """Yield all collectives of the compiled code, each as plans have it.

        Returns:
            Pairs, with the tensor, op and line of what was planned, if it was.
        """
        pairs = [*self.matched, *((one.planned, one.compiled) for one in self.differences)]
        for planned, compiled in pairs:
            # The compiler's bytes cross hosts in the same shares as the plan's.
            host, slice_ = (
                size * compiled.wire_bytes // max(1, planned.wire_bytes)
                for size in (planned.host_bytes, planned.slice_bytes)
            )
            facts = {**compiled.facts, "host_bytes": host, "slice_bytes": slice_}
            yield compiled, replace(planned, **facts)
        for one in (*self.helpers, *self.unplanned):
            names = {"tensor": one.op_name.rpartition("/")[2], "op": one.name}
            place = {"phase": "unplanned", "source": Source("", 0)}
            yield one, Collective(**one.facts, **names, **place)

    @property
    def wire_bytes(self) -> int:
        """The bytes that one device sends in one step, by the usual algorithms, as compiled."""
        return sum(one.wire_bytes * one.times for one in self.compiled)

    @property
    def notes(self) -> list[str]:
        """Sentences about the rules that were used, and about matches by shape alone."""
        notes = [f"{name}{_count(times)}" for name, times in self.rules.items()]
        if self.by_shape:
            kinds = Counter(plan.kind for plan, _ in self.by_shape)
            parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            notes.append(f"{len(self.by_shape)} matched by shape alone: {parts}")
        unknown = sum(plan.open_ended for plan, _ in self.matched)
        if unknown:
            notes.append(
                f"{unknown} in loops of unknown length, which the plan counts by the iteration"
            )
        return notes

    def count(self, kind: str) -> int:
        """Count the compiled collectives of a kind, those in loops once.

        Args:
            kind: Such as `AllReduce`; of a matched collective, the planned kind counts.

        Returns:
            The count.
        """
        kinds = [plan.kind for plan, _ in self.matched]
        kinds += [one.planned.kind for one in self.differences]
        kinds += [one.kind for one in self.unplanned]
        return kinds.count(kind)

    def enforce(self, strict: bool | None, sources: Mapping[str, Source] | None = None) -> None:
        """Warn about, or raise for, all collectives on which plan and code do not agree.

        Args:
            strict: True to raise; None follows the environment variable NAMEDMESH_STRICT.
            sources: The user's line of each op by its name in compiled code, if they are known.

        Raises:
            NamedMeshError: If strict and plan and code do not agree.
        """
        if self.exact:
            return
        if strict is None:
            strict = os.environ.get("NAMEDMESH_STRICT", "") not in ("", "0")
        clauses = [
            f"made {_number(self.unplanned)} that the plan does not have" if self.unplanned else "",
            f"did not make {_number(self.missing)} that the plan has" if self.missing else "",
            f"made {_number(self.differences)} otherwise than planned" if self.differences else "",
        ]
        problem = f"the compiler {', and '.join(filter(None, clauses))}"
        details = self.describe_problems()
        if strict:
            explicit = "reshard or replicate the tensors named here explicitly"
            if all(one.again for one in self.unplanned):
                explicit = "leave the compiler more memory: a smaller batch, or nm.checkpoint"
            report = "the plan is wrong about the collectives named here: please report them"
            raise NamedMeshError(
                problem,
                *details,
                fix=f"{explicit if self.unplanned else report}, or run with strict=False",
                source=self._find_source(sources or {}),
            )
        warn_caller("\n  ".join([problem, *details]))

    def _find_source(self, sources: Mapping[str, Source]) -> Source | None:
        """Find the user's line of the first op that sends without being planned to."""
        names = (name for one in self.unplanned for name in names_in(one.op_name))
        return next((sources[name] for name in names if name in sources), None)

    def describe_problems(self) -> list[str]:
        """Describe all collectives on which plan and code do not agree.

        Returns:
            A line for each.
        """
        lines = [f"unplanned {_describe_compiled(one)}" for one in self.unplanned]
        lines += [f"not made {_describe_planned(plan)}" for plan in self.missing]
        return lines + [f"different {one}" for one in self.differences]

    def _repr_html_(self) -> str:
        head, *lines = str(self).splitlines()
        numbers = ("planned", "made", "times")
        names = ("collective", "axes", "tensor", *numbers, "phase", "line")
        rows = [
            (
                *(plan.kind, "+".join(plan.axes), plan.tensor, human(plan.wire_bytes)),
                *(human(one.wire_bytes), str(one.times), plan.phase, str(plan.source)),
            )
            for plan, one in self.matched
        ]
        table = html_table(names, rows, numbers)
        table = html_details(f"{len(rows)} as planned, with bytes on the wire", table)
        return html_block(head, html_text(*lines), table if rows else "")

    def __repr__(self) -> str:
        head, *lines = str(self).splitlines()
        return "\n".join([head, *lines[:3], *[f"  and {len(lines) - 3} more"] * (len(lines) > 3)])

    def __str__(self) -> str:
        known = len(self.matched) + len(self.merged)
        head = (
            f"audit: {known} as planned, {len(self.unplanned)} unplanned, "
            f"{len(self.missing)} not made"
        )
        if self.differences:
            head += f", {len(self.differences)} different"
        lines = [*self.describe_problems(), *self.notes]
        return "\n".join([head, *(f"  {line}" for line in lines)])


def audit(
    module: Module,
    mesh: Mesh,
    planned: Sequence[Collective],
    *,
    backend: str,
    precision: str = "default",
    ops: Iterable[str] = (),
    orders: Iterable[tuple[str, ...]] = (),
) -> Audit:
    """Compare the collectives of a compiled module with those of a plan of some named ops.

    Orders are the axes that number the shards of the program's dimensions.
    """
    rules = find_rules(backend, precision)
    planned = [part for one in planned for part in one.split()]
    if mesh.slices > 1 and backend == "tpu":
        result = match_slices(planned, module, mesh, rules, ops, orders)
    else:
        # A collective among groups of one device communicates nothing, and neither does one that
        # the code never runs.
        compiled = [one for one in find_collectives(module, mesh) if one.axes != () and one.times]
        result = match_collectives(planned, compiled, mesh, rules, ops, orders)
        if NEEDLESS in rules:
            merge_needless(result, module)
    return Audit(**vars(result))


def _number(values: Sequence[object]) -> str:
    """Format a number of collectives."""
    return f"{len(values)} collective{'s'[: len(values) != 1]}"


def _count(times: int) -> str:
    """Format a count of times, if more than one."""
    return f" ({times} times)" if times > 1 else ""


def _describe_planned(plan: Collective) -> str:
    """Describe a planned collective, and the line it comes from."""
    often = _often(plan.times, plan.open_ended)
    return (
        f"{plan.kind} over {'+'.join(plan.axes)} of {plan.tensor}, {plan.elements} {plan.dtype} "
        f"elements{often} ({plan.op} at {plan.source})"
    )


def _describe_compiled(one: CompiledCollective) -> str:
    """Describe a compiled collective, and the op it comes from."""
    axes = "+".join(one.axes) if one.axes else "other groups"
    axes += ", in another order," if OTHER in one.order else ""
    op = one.op_name
    if op.startswith("jit("):
        op = op.partition(_ENCLOSING)[2] or op
    often = _often(one.times, one.open_ended)
    origin = one.name if one.kind == "CustomCall" or not op else op
    what = f"{one.kind} over {axes} of {one.elements} {one.dtype} elements{often}, from {origin}"
    bytes = human(one.wire_bytes * one.times)
    again = f", which XLA makes again to save memory: {bytes} more on the wire"
    return f"{what}{again if one.again else ''}"


def _often(times: int, open_ended: bool) -> str:
    """Format how often a collective runs, if that is not once."""
    if open_ended:
        return f", {times} times in each iteration of a loop"
    return f", {times} times" if times != 1 else ""
