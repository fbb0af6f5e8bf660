"""Prices: whether an op gathers a dimension first or works on shards of it, by what that sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product, takewhile

from namedmesh.dims.sharding import Sharding
from namedmesh.display.text import human
from namedmesh.ir.op import Op, every_op
from namedmesh.ir.tensor import Tensor
from namedmesh.planning.accumulation import is_lighter_as_sum
from namedmesh.planning.agreement import Agreement
from namedmesh.planning.planner import Planner
from namedmesh.records.collective import Collective


@dataclass(frozen=True)
class Option:
    """Shardings in which an op may read its operands, and what that sends."""

    places: Sequence[Sharding]
    moves: tuple[str, ...]  # the collectives, each with its tensor
    sent: float  # bytes that one device sends in a step
    kept: float = 0.0  # of these, what the op's gradient reads again: the indices

    def __str__(self) -> str:
        moves = ", ".join(self.moves) or "nothing"
        return f"{moves} ({human(self.sent)} on the wire)"


def choose_by_price(
    agreement: Agreement, places: Sequence[Sharding], times: int, sums: int
) -> Sequence[Sharding]:
    """Choose where an op reads its operands; it runs `times`, and adds up `sums` times."""
    options = list(_list_options(agreement, places, times, sums))
    best = min(options, key=lambda one: one.sent)  # of equal ones the first, which gathers least
    if not best.kept and any(one.kept for one in options):
        # Indices that are gathered here are there for the gradient, which otherwise sends as much
        # as the lookup did: rows, or else the whole tensor.
        whole = best.sent
        best = min(options, key=lambda one: one.sent + min(whole, one.sent - one.kept))
    others = [one for one in options if not Counter(best.moves) <= Counter(one.moves)]
    rival = min(others, key=lambda one: one.sent, default=None)
    if rival is not None and best.sent:
        op, planner = agreement.op, agreement.planner
        text = f"{op.source.user}: {op.kind} sends {best}; it could send {rival}"
        text += ", and the indices for its gradient" if rival.sent < best.sent else ""
        planner.state.decide(text, op.output)
    return best.places


def tell_row_updates(planner: Planner) -> None:
    """Note what is gathered to update rows of a table, beside sums of all of its gradient."""
    state = planner.state
    for op in every_op(planner.program.ops):
        names = _find_update_names(planner, op) if op.rests_like is not None else ()
        sent = [one for one in state.collectives if one.op in names and one.kind == "AllGather"]
        if op.rests_like is None or not sent:
            continue
        table = op.inputs[op.rests_like[0]]
        place, along = state.shardings[table], {axis for one in sent for axis in one.axes}
        kept = {name: tuple(a for a in axes if a not in along) for name, axes in place.held}
        partial = Sharding.of(kept).with_partial([a for a in planner.mesh.axes if a in along])
        price, kinds = planner.price_moves(table, partial, place)
        chosen = _describe_sent(sent)
        whole = tuple(f"{kind} of d_{table.label}" for kind in kinds)
        other = f"it could send {Option([], whole, price)}, without rows="
        text = f"{op.source.user}: the update of {table.label} sends {chosen}; {other}"
        state.decide(text, table)


def tell_sorts(planner: Planner) -> None:
    """Note what sorting a split dimension sends."""
    state = planner.state
    for op in every_op(planner.program.ops):
        name = planner.uses.names.get(op) if op.kind == "sort" else None
        sent = [one for one in state.collectives if one.op == name]
        if sent and not op.derived:
            fix = "nm.top_k sends the largest alone (in Sample, top_k= beside top_p=)"
            state.decide(f"{op.source.user}: sort sends {_describe_sent(sent)}; {fix}", op.output)


def _describe_sent(sent: Sequence[Collective]) -> Option:
    """Return what some collectives send as an option."""
    moves = tuple(f"{one.kind} of {one.tensor}" for one in sent)
    return Option([], moves, sum(one.total_wire_bytes for one in sent))


def _find_update_names(planner: Planner, op: Op) -> set[str]:
    """Return the names of an op and of those in the update that make its operands."""
    found, left = {op}, [op]
    while left:
        makers = map(planner.uses.producers.get, left.pop().inputs)
        new = {one for one in makers if one is not None and one.phase == "update"} - found
        found |= new
        left += new
    return {planner.uses.names[one] for one in found}


def _list_options(
    agreement: Agreement, places: Sequence[Sharding], times: int, sums: int
) -> Iterator[Option]:
    """Yield every choice of axes to gather dimensions along after which the others agree."""
    priced = agreement.asked.priced
    concerned = priced | agreement.asked.reduced
    for chosen in (places, *_find_resting(agreement, places)):
        claims = sorted(
            {
                (name, axes)
                for i, place in enumerate(chosen)
                for name, axes in place.held
                if name in priced and agreement.can_split(i, name, axes)
            }
        )
        choices = list(product(*(_list_kept(agreement, chosen, *claim) for claim in claims)))
        for kept in sorted(choices, key=lambda one: -sum(map(len, one))):
            after = dict(zip(claims, kept, strict=True))
            narrow = []
            for place in chosen:
                held = {name: after.get((name, axes), axes) for name, axes in place.held}
                narrow.append(Sharding.of(held, place.whole, place.partial))
            # In use, a conflict about another dimension is settled as for every op.
            among = [one.only(concerned) for one in narrow] if chosen is places else narrow
            if agreement.join_claims(among)[1] is None:
                yield _price_option(agreement, narrow, times, sums)


def _list_kept(
    agreement: Agreement, places: Sequence[Sharding], name: str, axes: tuple[str, ...]
) -> list[tuple[str, ...]]:
    """List the axes that a dimension may keep: all, the first that are its own, none."""
    planner, op, target = agreement.planner, agreement.op, agreement.target
    others = {axis for one in places for other, used in one.held if other != name for axis in used}
    known = {other for x in op.inputs for other in x.shape.names}
    for other in {*op.output.shape.names} - known:  # where rows are added up
        layout = planner.layout_axes(planner.layout_of(op), other)
        others.update(layout if target is None else target.axes(other))
    # Without one from the middle the result would have its axes in another order than others.
    first = tuple(takewhile(lambda axis: axis not in others, axes))
    return list(dict.fromkeys((axes, first, ())))


def _find_resting(agreement: Agreement, places: Sequence[Sharding]) -> Iterator[Sequence[Sharding]]:
    """Yield the operands' shardings with a parameter read where it rests, split into rows."""
    planner, state = agreement.planner, agreement.planner.state
    for i, tensor in enumerate(agreement.op.inputs):
        if tensor in state.resting:
            # Its other dimensions are gathered as for every op: columns that stay split would take
            # their axes from the result's own dimensions, here and in all ops after it.
            rows = state.shardings[tensor].only(agreement.asked.priced).with_partial(())
            rest = Sharding.of({**places[i].mapping, **rows.mapping}, places[i].whole)
            if rows.held and rest != places[i] and not _is_gathered(planner, tensor):
                yield [rest if j == i else place for j, place in enumerate(places)]


def _is_gathered(planner: Planner, tensor: Tensor) -> bool:
    """Return whether another op gathers a parameter anyway."""
    readers = planner.uses.readers.get(tensor, ())
    return any(
        not reader.placement().priced
        for reader in readers
        if reader.phase != "update" and not planner.rests(reader)
    )


def _price_option(
    agreement: Agreement, places: Sequence[Sharding], times: int, sums: int
) -> Option:
    """Price the moves of an op's operands to where they agree, and of its result from there."""
    planner, op, state = agreement.planner, agreement.op, agreement.planner.state
    axes, _ = agreement.join_claims(places)
    moves: list[str] = []
    sent = kept = 0.0
    for tensor in op.inputs:
        if tensor in state.constants or tensor in state.accumulators:
            continue
        agreed = Sharding.of(axes).only(tensor.shape.names)
        steps = planner.find_way(tensor, state.shardings[tensor].with_partial(()), agreed)
        runs = times
        if tensor in state.captures:  # it moves once, before the loop
            loop, _, runs, _ = state.captures[tensor]
            steps = [] if (tensor, agreed) in state.captured_moves.get(loop, {}) else steps
        shared = state.count_shared_moves(tensor, steps, state.moved)
        price, kinds = planner.price_steps(tensor, steps[shared:])
        moves += [f"{kind} of {tensor.label}" for kind in kinds]
        sent += price * runs
        readers = planner.uses.readers.get(tensor, ())
        if any(one.derived and one.placement().priced for one in readers if one is not op):
            kept += price * runs
    summed = [axis for name in agreement.asked.reduced for axis in axes.get(name, ())]
    result, natural = op.output, Sharding.of(axes).only(op.output.shape.names)
    pool = planner.find_pool(result, natural) if summed else None
    result = result if pool is None else pool  # it may be added up after what readers make of it
    natural = natural.only(result.shape.names)
    target = _find_target(agreement, result, natural, places)
    steps = planner.conversion(result, natural.with_partial(summed), target)
    price, kinds = planner.price_steps(result, steps)
    moves += [f"{kind} of {result.label}" for kind in kinds]
    sent += price * sums * _find_share(planner, result, summed)
    return Option(places, tuple(moves), sent, 0.0 if op.derived else kept)


def _find_target(
    agreement: Agreement, result: Tensor, natural: Sharding, places: Sequence[Sharding]
) -> Sharding:
    """Return the sharding in which the op's result is wanted."""
    planner, op = agreement.planner, agreement.op
    reader = planner.uses.sole_reader(result)
    if agreement.target is not None and result is op.output:
        return agreement.target
    if reader is not None and reader.rearranges and reader.output.primal is not None:
        after = planner.sharding_of(reader.output.primal)  # the same cotangent in another order
        if after is not None and {*reader.output.shape} == {*result.shape}:
            return after
    if op.derived:
        return natural
    whole = frozenset(name for place in places for name in place.whole)
    layout = planner.layout_of(op)
    return Sharding.of(planner.take_idle_axes(result, natural.mapping, whole, layout)[0])


def _find_share(planner: Planner, tensor: Tensor, summed: Sequence[str]) -> float:
    """Return an op's share of what adding up its result sends, with other terms of a sum."""
    if summed and is_lighter_as_sum(planner, tensor):
        tensor = planner.uses.find_term(tensor) or tensor
    if not summed or not planner.uses.is_summand(tensor):
        return 1.0
    reader = planner.uses.sole_reader(tensor)
    terms = () if reader is None else reader.inputs
    state = planner.state
    if any({*summed} <= {*state.pending_axes(term)} for term in terms):
        return 0.0  # another term is added up anyway
    return 1.0 / sum(term not in state.shardings for term in terms)
