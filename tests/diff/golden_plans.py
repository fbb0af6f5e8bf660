"""The plans of examples, presets and benchmarks that are kept as files in tests/golden.

python -m tests.diff.golden_plans     writes them again: `make golden`
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable

import namedmesh as nm
from benchmarks import llama_plans, tpu_v3
from examples.llm import model as lm
from examples.llm.architecture import Experts
from examples.llm.settings import PRESETS as LM_PRESETS
from examples.llm.training import place_program
from examples.m4.programs import PROGRAMS
from examples.m4.settings import PRESETS as M4_PRESETS
from examples.unet.model import UNet, train_program

FOLDER = pathlib.Path(__file__).parent.parent / "golden"


def plan_m4(preset: str, program: str = "train") -> nm.Plan:
    """Plans a program of examples/m4 as a run of a preset does."""
    settings = M4_PRESETS[preset]
    traced = PROGRAMS[program](settings)
    layout = nm.Layout(settings.layout).only(traced.dims)
    return nm.plan(traced, nm.Mesh.parse(settings.mesh), layout)


def plan_lm(layout: str, experts: int = 0) -> nm.Plan:
    """Plans a train step of examples/llm."""
    settings = LM_PRESETS["tiny"].but(layout=layout)
    if experts:
        mixture = Experts(experts, 2, settings.architecture.hidden)
        settings = settings.but(architecture=settings.architecture.but(experts=mixture))
    traced = lm.train_program(settings)
    return nm.plan(traced, **place_program(traced, settings))


def plan_unet(mesh: str, layout: str) -> nm.Plan:
    """Plans a train step of examples/unet."""
    return nm.plan(train_program(UNet(), 5e-3, 400), nm.Mesh.parse(mesh), layout)


def plan_llama(name: str, hosts: int = 1) -> nm.Plan:
    """Plans two layers of benchmarks/llama_plans, forward and backward."""
    case = llama_plans.CASES[name]
    program = llama_plans.trace_stack(case, 2)
    mesh = nm.Mesh.parse(f"{case.mesh} hosts={hosts}")
    return nm.plan(program, mesh, case.layout, case.params)


def plan_paper(name: str) -> nm.Plan:
    """Plans a train step of the paper's family, as benchmarks/tpu_v3 compiles it."""
    return tpu_v3.plan_case(tpu_v3.CASES[name])


PLANS: dict[str, Callable[[], nm.Plan]] = {
    "m4_small": lambda: plan_m4("small"),
    "m4_small_dense": lambda: plan_m4("small_dense"),
    "m4_small_translate": lambda: plan_m4("small", "translate"),
    "lm_data": lambda: plan_lm("data"),
    "lm_context": lambda: plan_lm("context"),
    "lm_experts": lambda: plan_lm("expert", experts=4),
    "lm_folded": lambda: plan_lm("folded", experts=4),
    **{
        f"lm_{name.replace('+', '_')}": lambda name=name: plan_lm(name)
        for name in ("fsdp", "megatron", "megatron+sequence", "fsdp+megatron", "pipeline")
    },
    "unet": lambda: plan_unet("data=2 space=4", "batch:data, rows:space"),
    **{
        f"llama_{name.replace('+', '_')}": lambda name=name: plan_llama(name)
        for name in ("tp+sp", "fsdp+tp", "dp+cp", "ep")
    },
    "llama_fsdp_tp_hosts": lambda: plan_llama("fsdp+tp", hosts=2),
    "paper_moe_2048e_36l": lambda: plan_paper("moe_2048e_36l"),
}


def make_plan(name: str) -> nm.Plan:
    """Makes one of the plans."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the file has what a plan warns of
        return PLANS[name]()


def main() -> None:
    """Writes every file, and removes those of plans that are no more."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        if path.stem not in PLANS:
            path.unlink()
    for name in PLANS:
        make_plan(name).save(FOLDER / f"{name}.json", lines=False)


if __name__ == "__main__":
    main()
