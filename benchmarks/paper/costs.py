"""The paper's models, planned now and estimated on TPU v3: the time of a step and its parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import namedmesh as nm
from benchmarks.pipelines import T_96L_ROWS
from benchmarks.pipelines import plan_case as plan_pipeline
from benchmarks.tpu_v3 import LENGTH, Case, plan_case

TARGET = "tpu-v3"
TOKENS = 1e12  # that every model of the paper has seen in training
YEAR = 365.25  # days


@dataclass(frozen=True)
class StepRate:
    """Steps a second of a model, without and with perfect overlap, and what training costs."""

    slow: float
    fast: float
    cores: int
    tokens: int  # in a step, on the source side

    def days(self, rate: float) -> float:
        """Return the days in which a trillion tokens pass."""
        return TOKENS / self.tokens / rate / 86400

    def core_years(self, rate: float) -> float:
        """Return the years of one core."""
        return self.days(rate) * self.cores / YEAR


@cache
def estimate(case: Case) -> nm.Cost:
    """Plan the train step of a case, and estimate it; seconds."""
    return nm.cost(plan_case(case), TARGET)


@cache
def estimate_dense() -> nm.Cost:
    """Plan the train step of T(96L) as a pipeline on 2,048 cores, and estimate it."""
    return nm.cost(plan_pipeline("t_96l"), TARGET)


def rate_of_dense() -> StepRate:
    """Estimate the steps a second of T(96L)."""
    cost = estimate_dense()
    return StepRate(1 / cost.serial_seconds, 1 / cost.least_seconds, 2048, T_96L_ROWS * LENGTH)


def case_of(experts: int, layers: int, millions: int) -> Case:
    """Return the case of so many million source tokens a step; the deep ones recompute."""
    groups = millions * 2**20 // (LENGTH * experts)
    return Case(experts, layers, groups, remat="none" if layers == 12 else "full")


def rate_of(experts: int, layers: int, millions: int) -> StepRate:
    """Estimate the steps a second of a model."""
    case = case_of(experts, layers, millions)
    cost = estimate(case)
    tokens = case.tokens // 2
    return StepRate(1 / cost.serial_seconds, 1 / cost.least_seconds, experts, tokens)


@dataclass(frozen=True)
class Forward:
    """Seconds of the layers in the forward pass, by the categories of the paper's figure."""

    dense: float  # attention, feed-forward networks and experts
    gate: float  # products of the gate
    routing: float  # what else the gate computes: searches, running sums, dispatch by index
    all_to_all: float

    @property
    def total(self) -> float:
        """The seconds of all."""
        return self.dense + self.gate + self.routing + self.all_to_all


@cache
def break_down(experts: int) -> Forward:
    """Divide the forward pass of a model of twelve layers with 1,024 source tokens a core."""
    cost = estimate(Case(experts, 12, remat="none"))
    seconds = {"dense": 0.0, "gate": 0.0, "routing": 0.0}
    for one in cost.ops:
        if one.phase != "forward" or "/" not in one.scope:  # embeddings, logits and loss
            continue
        part = "dense"
        if one.scope.endswith("moe"):
            experts_compute = one.op.kind in ("einsum", "relu", "multiply") and any(
                "hidden" in tensor.shape.names for tensor in (*one.op.inputs, *one.op.outputs)
            )
            products = "gate" if one.op.kind == "einsum" else "routing"
            part = "dense" if experts_compute else products
        seconds[part] += one.total_seconds
    sent = sum(
        one.total_seconds
        for one in cost.collectives
        if one.collective.phase == "forward" and one.collective.kind == "AllToAll"
    )
    return Forward(**seconds, all_to_all=sent)
