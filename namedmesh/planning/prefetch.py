"""Prefetch: loops gather weights at rest an iteration ahead, and scatter gradients one late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from namedmesh.dims.sharding import Transfer
from namedmesh.display.text import human
from namedmesh.ir.format import count_noun
from namedmesh.ir.op import Body, LoopSpec, Op, every_op
from namedmesh.ir.prune import trace_back
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.planner import Planner
from namedmesh.planning.state import NO_PIPELINE, Pipeline, Placed, PlanState
from namedmesh.records.collective import Collective


def plan_pipelines(planner: Planner) -> None:
    """Plan what loops do in another iteration, where the layout of parameters has `prefetch`."""
    state = planner.state
    for op in every_op(planner.program.ops) if planner.params.prefetch else ():
        loop = op.loop
        if loop is None or loop.over is None or loop.length == 1:
            continue
        # A copy from or to the host's memory has to stay in the iteration that XLA sees it in.
        if any(one.offloads for one in every_op(loop.body.ops)):
            continue
        known = _find_known(state, loop)
        gathers: dict[Placed, tuple[Op, Tensor, Sequence[Transfer]]] = {}
        for reader, x, steps in _list_moves(state, loop.body):
            rests = x in known and x in state.resting and state.find_capture(x) is None
            if rests and any(step.kind == "AllGather" for step in steps):
                gathers.setdefault((state.value_of(x), steps[-1].result), (reader, x, steps))
        gathers = {place: one for place, one in gathers.items() if place not in state.unread}
        late = _find_late(state, loop, known)
        sums = dict.fromkeys(x for x, sources in late.items() if x in sources)
        if gathers or sums:
            made = late.keys() - sums.keys()
            makers = [one for one in loop.body.ops if not made.isdisjoint(one.outputs)]
            results = [i for i, x in enumerate(loop.body.outputs) if x in late]
            state.pipelines[op] = Pipeline(gathers, [*sums], makers, results)
            _tell_pipeline(planner, op, loop)
    if state.pipelines:
        loops = {
            state.names[op]: around for op, around in _list_loops(planner, planner.program.ops)
        }
        read = [one for pipeline in state.pipelines.values() for one in pipeline.gathers.values()]
        ahead = {(state.names[reader], tensor.label) for reader, tensor, _ in read}
        state.collectives = [
            _count_copies(one, loops[one.op], (one.op, one.tensor) in ahead)
            for one in state.collectives
        ]


# Of a loop around an op: its iterations, how many of them are written out beside it, and whether
# what the op makes in the last one is read by nothing, so that XLA leaves it out.
Loops = tuple[tuple[int, int, bool], ...]


def _list_loops(
    planner: Planner, ops: Sequence[Op], around: Loops = ()
) -> Iterator[tuple[Op, Loops]]:
    """Yield every op with the loops around it, the outermost first."""
    for op in ops:
        yield op, around
        gathers, sums, *_ = planner.state.pipelines.get(op, NO_PIPELINE)
        for body in op.bodies:
            results = zip(op.outputs, body.outputs, strict=False)
            read = [inner for outer, inner in results if planner.uses.count_uses(outer)]
            live = trace_back(body.ops, read)
            for one in body.ops:
                loops, written = around, bool(gathers) + bool(sums)
                if op.loop is not None:
                    unread = bool(gathers) and live.isdisjoint(one.outputs)
                    loops = (*around, (op.loop.length, written, unread))
                yield from _list_loops(planner, [one], loops)


def _count_copies(one: Collective, loops: Loops, ahead: bool) -> Collective:
    """Return a collective with how often each copy of it runs, if there are several."""
    copies, total = [1], 1
    for i, (length, written, unread) in enumerate(loops, 1):
        if total == one.times:  # a sum may be added up outside of the loop of its op
            break
        total *= length
        rest = [length - written] if length > written else []
        dropped = unread and not (ahead and i == len(loops))  # what is ahead is there by then
        copies = [count * more for count in copies for more in [1] * (written - dropped) + rest]
    copies = [count * (one.times // total) for count in copies]  # a product in slices has a loop
    parts = tuple(copies) if len(copies) > 1 else ()
    return one if copies == [one.times] else replace(one, times=sum(copies), copies=parts)


def _find_known(state: PlanState, loop: LoopSpec) -> set[Tensor]:
    """Find what cheap ops make of rows and captures where they are, in whatever iteration."""
    known = {*loop.body.inputs[loop.carries :], *loop.body.captures}
    for op in loop.body.ops:
        cheap = op.elementwise or op.rearranges or op.barrier or op.states_place or op.adds_operands
        moves = [state.operand_moves.get((op, i), ()) for i in range(len(op.inputs))]
        moves += [state.moves.get(x, ()) for x in op.outputs]
        cheap = cheap and not op.given and all(map(_sends_nothing, moves))
        if cheap and all(x in known or x in state.constants for x in op.inputs):
            known.update(op.outputs)
    return known


def _sends_nothing(steps: Sequence[Transfer]) -> bool:
    """Return whether devices only cut out shards of what they have."""
    return all(step.kind == "Slice" for step in steps)


def _list_moves(state: PlanState, body: Body) -> Iterator[tuple[Op, Tensor, Sequence[Transfer]]]:
    """Yield the moves of operands of a body's ops, and of what its inner loops capture."""
    for op in body.ops:
        for i, x in enumerate(op.inputs):
            yield op, x, state.operand_moves.get((op, i), ())
        for i, steps in state.captured_moves.get(op, {}).values():
            yield op, op.inputs[i], steps


def _find_late(state: PlanState, loop: LoopSpec, known: set[Tensor]) -> dict[Tensor, set[Tensor]]:
    """Find gradients that may be added up late and what is made of them, each with the gradients.

    The next iteration reads none of it, and what else they are updated with is known.
    """
    carried = trace_back(loop.body.ops, loop.body.outputs[: loop.carries])
    blocked = set[Tensor]()
    while True:
        late, before = dict[Tensor, set[Tensor]](), len(blocked)
        for op in loop.body.ops:
            sources = {source for x in op.inputs for source in late.get(x, ())}
            for i, x in enumerate(op.inputs if sources else ()):
                stays = _sends_nothing(state.operand_moves.get((op, i), ()))
                stays = stays or state.find_capture(x) is not None
                if x not in late and not (stays and (x in known or x in state.constants)):
                    blocked |= sources
            for x in op.outputs:
                summed = x.primal is not None and any(one.sums for one in state.moves.get(x, ()))
                if sources:
                    late[x] = sources
                elif summed and x not in carried | blocked:
                    late[x] = {x}
        if len(blocked) == before:
            return late


def _tell_pipeline(planner: Planner, op: Op, loop: LoopSpec) -> None:
    """Note what a loop gathers ahead or adds up late, and the memory that takes."""
    gathers, sums, *_ = planner.state.pipelines[op]
    parts, held = [], planner.state.held_between(op)
    size = sum(place.local_elements(x.shape, planner.mesh) * x.itemsize for x, place in held)
    if gathers:
        parts.append(f"gathers {count_noun(len(gathers), 'weight')} one iteration ahead")
    if sums:
        parts.append(f"adds up {count_noun(len(sums), 'gradient')} one late")
    text = f"the loop over {loop.over} {' and '.join(parts)}: {human(size)} more on each device"
    for tensor, _ in held:
        planner.state.decide(text, tensor)
