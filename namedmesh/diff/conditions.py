"""Conditions on a comparison: `wire_bytes > +5%`, so that a build fails on what it costs."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from namedmesh.diff.diff import Diff
from namedmesh.diff.totals import (
    COUNTED,
    METRICS,
    PARTS,
    format_change,
    format_figure,
    unit_of,
)
from namedmesh.errors.errors import NamedMeshError, check_text, did_you_mean

EXAMPLES = "wire_bytes > +5%, memory > 16GiB, seconds >= 1.2x, AllGather > +0, different"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
_UNITS = {
    "": ("", 1.0),
    "B": ("bytes", 1.0),
    **{f"{p}B": ("bytes", 1e3**i) for i, p in enumerate("kMGT", 1)},
    "KB": ("bytes", 1e3),
    **{f"{p}iB": ("bytes", 1024.0**i) for i, p in enumerate("KMGT", 1)},
    **{name: ("seconds", scale) for name, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))},
}
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+"
_CONDITION = re.compile(
    rf"\s*([A-Za-z_]+(?:\.[A-Za-z_]+)?)\s*([<>=!]=?)\s*([+-]?)({_NUMBER})\s*([A-Za-z%]*)\s*"
)


@dataclass(frozen=True)
class Condition:
    """One condition: a metric of the second plan against a number, or against the first plan's."""

    text: str  # as it was written
    metric: str  # `different` for any difference at all
    comparison: str = "=="
    sign: str = ""  # + or - where the number is a change of the first plan's figure
    number: float = 0.0
    unit: str = ""  # %, x, or a unit of bytes or seconds

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition."""
        if check_text(text, "a condition", "wire_bytes > +5%").strip() == "different":
            return cls(text.strip(), "different")
        match = _CONDITION.fullmatch(text)
        if match is None or match.group(2) not in _COMPARE:
            raise NamedMeshError(
                f"cannot read {text!r} as a condition",
                fix=f"write a metric, a comparison and a number, e.g. {EXAMPLES}",
            )
        metric, comparison, sign, number, unit = match.groups()
        _check_metric(metric, text)
        _check_unit(metric, sign, unit, text)
        return cls(text.strip(), metric, comparison, sign, float(number), unit)

    def explain(self, diff: Diff) -> str | None:
        """Return why a comparison meets the condition; None if it does not."""
        if self.metric == "different":
            return None if diff.same else f"{self.text}: the plans are not the same"
        before, after = diff.totals.get(self.metric, (0, 0))
        absolute = not self.sign and self.unit not in ("%", "x")
        if after is None or (before is None and not absolute):
            which = "the first plan" if before is None else "the second plan"
            which = "both plans" if before is after else which
            raise NamedMeshError(
                f"{self.text!r}: {self.metric} is not known of {which}",
                fix="give --target for what is planned, and save plans with one: "
                "plan.save(path, target=...); audits and artifacts have no cost",
            )
        if not self._holds(before or 0, after):
            return None
        if before is None or (absolute and before == after):
            return f"{self.text}: {format_figure(self.metric, after)}"
        figures = " -> ".join(format_figure(self.metric, value) for value in (before, after))
        return f"{self.text}: {figures} ({format_change(before, after)})"

    def _holds(self, before: float, after: float) -> bool:
        number = -self.number if self.sign == "-" else self.number
        if self.unit == "%":
            return self._compare(_ratio(before, after) - 1, number / 100)
        if self.unit == "x":
            return self._compare(_ratio(before, after), number)
        value = after - before if self.sign else after
        return self._compare(value, number * _UNITS[self.unit][1])

    def _compare(self, value: float, limit: float) -> bool:
        # 105 of 100 is 5% more, which (105 / 100 - 1) is not quite.
        near = math.isclose(value, limit, rel_tol=1e-12, abs_tol=1e-12)
        return _COMPARE[self.comparison](limit if near else value, limit)


def _ratio(before: float, after: float) -> float:
    if before:
        return after / before
    return math.inf if after else 1.0


def _check_metric(metric: str, text: str) -> None:
    """Raise for an unknown metric."""
    name, dot, _ = metric.partition(".")
    metrics = [f"{name}.{part}" for part in PARTS] if dot and name in COUNTED else METRICS
    if metric not in metrics:
        raise NamedMeshError(
            f"{text!r}: there is no metric {metric!r}", fix=did_you_mean(metric, metrics)
        )


def _check_unit(metric: str, sign: str, unit: str, text: str) -> None:
    """Raise for a unit that the metric is not counted in."""
    kind = unit_of(metric)
    fitting = ["%", "x", *(name for name, (what, _) in _UNITS.items() if what in (kind, ""))]
    if unit not in fitting:
        problem = f"{metric} is not counted in {unit!r}"
        fix = f"use one of {', '.join(filter(None, fitting))}, or no unit"
    elif unit == "%" and not sign:
        problem, fix = "a percentage is a change", "write a sign, e.g. wire_bytes > +5%"
    elif unit == "x" and sign:
        problem, fix = "a multiple has no sign", "write e.g. wire_bytes > 1.2x"
    else:
        return
    raise NamedMeshError(f"{text!r}: {problem}", fix=fix)
