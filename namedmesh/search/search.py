"""nm.search: the meshes and layouts of a program that are fastest, or smallest."""

from __future__ import annotations

import inspect
import itertools
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from namedmesh.cost.cost import cost
from namedmesh.dims.layout import Layout, LayoutLike
from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError, check_count
from namedmesh.errors.mistakes import is_function
from namedmesh.hardware.hardware import Hardware
from namedmesh.ir.format import format_value
from namedmesh.ir.op import every_op
from namedmesh.ir.program import Program
from namedmesh.planning.plan_program import plan_step
from namedmesh.search.bounds import Bounds
from namedmesh.search.candidates import Candidate, make_candidate
from namedmesh.search.exploration import Exploration, show_progress
from namedmesh.search.facts import ProgramFacts, find_facts, find_stated_axes
from namedmesh.search.measure import Journal, fingerprint, measuring
from namedmesh.search.neighbours import find_neighbours, find_siblings
from namedmesh.search.result import Entry, Search, find_target, verify_plan
from namedmesh.search.space import Family, enumerate_space

UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


@dataclass(frozen=True)
class Variant:
    """A program that was made with some choices, and its facts."""

    choices: Mapping[str, Any]
    program: Program
    facts: ProgramFacts
    bounds: Bounds


def search(
    program: Program | Callable[..., Program],
    devices: int,
    target: str | os.PathLike | Hardware,
    *,
    hosts: int = 1,
    slices: int = 1,
    pin: LayoutLike = "",
    memory: float | str | None = None,
    axes: int = 3,
    plans: int | None = None,
    verify: int = 0,
    processes: int | None = None,
    resume: str | os.PathLike | None = None,
    progress: bool | None = None,
    **choices: Sequence[Any],
) -> Search:
    """Search meshes, layouts and layouts at rest for the fastest step that fits.

    Candidates are planned exactly, the most promising first, until no other could be better even at
    the lower bounds of its time and memory, or until so many plans are made. Needs no devices, and
    neither TensorFlow nor jax unless something is verified.

    Args:
        program: A traced program, or a function that makes one of the choices.
        devices: How many devices there are.
        target: Their hardware, as for `nm.cost`; `h100:32x8` says that they are on 32 hosts too.
        hosts: How many hosts they are on; the axis with the least traffic goes across them.
        slices: How many TPU slices they are on.
        pin: The part of the layout that stays, such as 'group:data'. Its axes keep their names, and
            other dimensions may share them. A dict can pin dimensions whole: `{"seq": []}`.
        memory: The memory that a step may take on one device, in bytes or as text such as
            '15.5 GiB'; by default all that a device has.
        axes: How many axes a mesh may have.
        plans: How many candidates to plan at most; by default 96, more for small programs.
        verify: How many of the fastest entries to compile ahead of time for the target, to audit,
            and to rank again by the compiler's schedule.
        processes: How many processes plan; by default one for each core. The result is the same.
        resume: The file of a journal, from which an interrupted search goes on.
        progress: Whether to show a bar; by default on a terminal.
        **choices: The values to try for each argument of the function, such as
            `remat=["none", "full"]`.

    Returns:
        The front of time and memory; prints as a table.

    Raises:
        NamedMeshError: An argument is wrong, or the journal belongs to another search.

    Example:
        >>> import namedmesh as nm
        >>> B, M, H = nm.dims("batch=64 model=1024 hidden=8192")
        >>> def layer(x):
        ...     h = nm.relu(nm.einsum([x, nm.param("wi", [M, H])], [B, H]))
        ...     return nm.einsum([h, nm.param("wo", [H, M])], [B, M])
        >>> program = nm.trace(layer, x=nm.spec([B, M]))
        >>> found = nm.search(program, 8, "tpu-v3", progress=False)
        >>> found.best.layout  # weights stay where they are, and activations are sent
        Layout('hidden:x, model:x')
    """
    start = time.perf_counter()
    devices = check_count(devices, "devices", 1)
    if devices < 2:
        fix = "give the number of devices to split over"
        raise NamedMeshError("there is nothing to split over 1 device", fix=fix)
    hardware = target if isinstance(target, Hardware) else Hardware.parse(target)
    every = hardware.network.place(Mesh(None, devices=devices, hosts=hosts, slices=slices))
    blocks = {f"{name}s": count for name, count in every.blocks.items()}
    check_count(axes, "axes", 1)
    verify = check_count(verify or 0, "verify")
    if plans is not None:
        check_count(plans, "plans", 1)
    processes = _count_cores() if processes is None else check_count(processes, "processes", 1)
    limit = hardware.memory_bytes if memory is None else parse_bytes(memory)
    pinned = Layout(pin)
    made = _make_programs(program, choices)
    variants = [_describe(*one, hardware, devices, blocks) for one in made]
    for variant in variants:
        _check_pin(pinned, variant.facts, axes)
    if plans is None:
        plans = _count_plans(variants[0].program)
    bounds = [(one.facts, one.bounds) for one in variants]
    space = enumerate_space(bounds, devices, pinned, axes, blocks)
    exploration = Exploration(space, limit, plans)
    programs = [one.program for one in variants]
    settings = (vars(hardware), devices, pinned.text, axes, choices, *blocks.items())
    journal = Journal(resume, fingerprint(programs, *settings))

    def make(family: Family, sizes: Sequence[int]) -> Candidate:
        facts = variants[family.variant].facts
        return make_candidate(facts, family, sizes, pinned, blocks, hardware)

    def candidate(number: int) -> Candidate:
        space = exploration.space
        return make(space.families[space.family[number]], space.sizes_of(number))

    with (
        show_progress(progress, plans) as show,
        measuring(programs, hardware, processes) as measure,
    ):

        def plan_round(chosen: Sequence[int]) -> None:
            some = [candidate(number) for number in chosen]
            if new := [one for one in some if one.key not in journal.measures]:
                journal.write(dict(zip((one.key for one in new), measure(new), strict=True)))
            exploration.add(chosen, [journal.measures[one.key] for one in some])
            seen.update(one.key for one in some)
            show(exploration)

        # Candidates are planned, round by round, until none is left that could be better; then
        # those next to the best, until none of them is better.
        seen: set[str] = set()
        while chosen := exploration.choose():
            plan_round(chosen)
        while (near := exploration.find_centre()) is not None:
            space, number = exploration.space, exploration.variant_of(near)
            options = [*find_neighbours(bounds[number][0], space, near, pinned, axes)]
            if exploration.is_best(near):  # what suits one remat, say, mostly suits the others
                options += find_siblings([facts for facts, _ in bounds], space, near, pinned)
            found: dict[int, dict[str, tuple[Family, tuple[int, ...]]]] = {number: {}}
            for family, sizes in options:
                key = make(family, sizes).key
                if key not in seen:
                    found.setdefault(family.variant, {}).setdefault(key, (family, sizes))
            known = len(space.family)
            for number, some in found.items():
                space = space.extend(some.values(), bounds[number], pinned)
                exploration.extend(space, near)
            while chosen := exploration.choose_near(known, near):
                plan_round(chosen)
                if not exploration.leads(near):
                    break

    def entry(number: int) -> Entry:
        one, takes = candidate(number), exploration.measures[number]
        variant = variants[one.variant]
        return Entry(one.mesh, one.layout, one.params, variant.choices, takes, variant.program)

    compiled, chosen = [], exploration.fastest(verify)
    for one in map(entry, chosen):
        outcome = verify_plan(one.plan(), find_target(hardware, one.mesh))
        compiled.append(replace(one, verified=outcome))
    compiled.sort(key=_rank_compiled)
    front = [*compiled, *(entry(one) for one in exploration.front() if one not in chosen)]
    fastest = min((one.seconds for one in front), default=math.inf)
    beyond = [one for one in map(entry, exploration.too_large()) if one.seconds < fastest]
    name, space = variants[0].program.name, exploration.space
    enumerated = len(space.family) + sum(space.too_small.values())
    counts = (enumerated, exploration.planned, exploration.count_reasons())
    return Search(
        name, devices, hardware.name, limit, tuple(front), tuple(beyond), *counts,
        dict(exploration.refusals), exploration.floor(), time.perf_counter() - start,
    )  # fmt: skip


def _rank_compiled(entry: Entry) -> tuple[bool, float]:
    """Put what fits and is as planned first, in the order of the compiler's schedules."""
    outcome = entry.verified
    assert outcome is not None, "only what was compiled is ranked"
    return not outcome.exact, outcome.step_seconds or entry.seconds


def _make_programs(
    program: Program | Callable[..., Program], choices: Mapping[str, Sequence[Any]]
) -> list[tuple[dict[str, Any], Program]]:
    """Make the program for every combination of choices."""
    if isinstance(program, Program):
        if choices:
            raise NamedMeshError(
                f"search: {', '.join(choices)} can be chosen only where the program is made",
                fix="give a function instead of a program: nm.search(lambda remat: "
                "nm.trace(...), ..., remat=['none', 'full'])",
            )
        if program.retrace is not None:
            return [({"remat": one}, program.retrace(one)) for one in ("none", 0.5, "full")]
        return [({}, program)]
    if not is_function(program):
        raise NamedMeshError(
            f"search: {format_value(program)} is a {type(program).__name__}, not a Program",
            fix="give what nm.trace returned, or a function that returns it",
        )
    for name, values in choices.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise NamedMeshError(
                f"search: {name}={values!r} is not a list of values to try",
                fix=f"write {name}=[{values!r}]" if values != [] else f"leave {name} out",
            )
    programs = []
    for values in itertools.product(*choices.values()):
        one = dict(zip(choices, values, strict=True))
        try:
            inspect.signature(program).bind(**one)
        except TypeError as error:
            raise NamedMeshError(
                f"search: the function that returns the program cannot be called: {error}",
                fix="give what nm.trace returned, or a function that returns it, of arguments "
                "with lists of values to try",
            ) from None
        result = program(**one)
        if not isinstance(result, Program):
            problem = f"search: the function returned a {type(result).__name__}, not a Program"
            raise NamedMeshError(problem, fix="return nm.trace(...)")
        programs.append((one, result))
    return programs


def _describe(
    choices: Mapping[str, Any],
    program: Program,
    hardware: Hardware,
    devices: int,
    blocks: Mapping[str, int],
) -> Variant:
    """Find the facts of a program, and its bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one_device = Mesh(None, **dict.fromkeys(("one", *find_stated_axes(program)), 1))
        alone = cost(plan_step(program, one_device), hardware)
    facts = find_facts(alone)
    return Variant(choices, program, facts, Bounds(facts, hardware, devices, blocks))


def _check_pin(pin: Layout, facts: ProgramFacts, axes: int) -> None:
    """Raise where a pinned part cannot be in any layout of a program."""
    if pin.prefetch:
        fix = "add it to params= of nm.plan and nm.compile, of what the search finds"
        raise NamedMeshError("search: the pin has prefetch", f"pin: {pin.text}", fix=fix)
    pinned = (axis for held in pin.rules.values() for axis in held)
    names = list(dict.fromkeys((*facts.axes, *pinned)))
    if len(names) > axes:
        problem = f"search: {len(names)} axes are pinned, and a mesh may have {axes}"
        stated = [f"the program names: {', '.join(facts.axes)}"] if facts.axes else []
        raise NamedMeshError(problem, f"pin: {pin.text}", *stated, fix=f"write axes={len(names)}")
    if names:
        sizes = {name: [size] for name, size in facts.largest.items()}
        pin.check(Mesh(None, **dict.fromkeys(names, 1)), sizes, "pin")


def _count_plans(program: Program) -> int:
    """Return the number of plans that take about a minute."""
    return min(1024, max(96, 200_000 // max(1, sum(1 for _ in every_op(program.ops)))))


def _count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_bytes(memory: float | str) -> float:
    """Read a number of bytes."""
    size = 0.0 if isinstance(memory, str) else float(memory)
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-zA-Z]*)\s*", str(memory))
    if match and isinstance(memory, str):
        size = float(match[1]) * UNITS.get(match[2].lower(), 0)
    if size > 0:
        return size
    fix = "write e.g. memory='15.5 GiB'"
    raise NamedMeshError(f"memory={memory!r} is not a number of bytes", fix=fix)
