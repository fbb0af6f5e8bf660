"""Templates: StableHLO to be copied, cut out of the module that TensorFlow made of fragments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from jaxlib.mlir import ir

from namedmesh.artifacts.stablehlo.editing import (
    Template,
    blocks,
    call_target,
    close_regions,
    find_captures,
    find_name,
    inline_calls,
    make_template,
)
from namedmesh.lowering.fragments import RESULTS, STAND_IN

_UNCHANGING = ("stablehlo.set_dimension_size", "stablehlo.reshape", "stablehlo.convert")


def cut_templates(module: ir.Module, counts: Iterable[int]) -> list[Template]:
    """Cut a module of fragments into them, their manual regions closed."""
    main = inline_calls(module)
    _drop_unchanging(main)
    close_regions(main)
    block = main.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    numbers = dict(_find_stand_ins(ops))
    made = {value: i for i, op in enumerate(ops) for value in op.results}
    (end,) = (op for op in ops if call_target(op) == RESULTS)
    results = iter(end.operands)
    return [_cut(ops, made, numbers, [*islice(results, count)]) for count in counts]


def _find_stand_ins(ops: Iterable[ir.Operation]) -> Iterator[tuple[ir.Value, int]]:
    """Yield the stand-ins, annotated or not, each with its operand's number."""
    numbers: dict[ir.Value, int] = {}
    for op in ops:
        if call_target(op) == STAND_IN:
            config = ir.StringAttr(op.attributes["backend_config"]).value
            numbers[op.result] = int(config.split()[0])
            yield op.result, numbers[op.result]
        elif call_target(op) == "Sharding" and find_name(op.location).startswith(STAND_IN):
            yield op.result, numbers[op.operands[0]]


def _cut(
    ops: Sequence[ir.Operation],
    made: dict[ir.Value, int],
    numbers: dict[ir.Value, int],
    results: Sequence[ir.Value],
) -> Template:
    """Follow results back to numbered values, and makes a template of the ops between them."""
    needed, waiting, operands = set[int](), list(results), 0
    while waiting:
        value = waiting.pop()
        if value in numbers:
            operands = max(operands, numbers[value] + 1)
        elif made[value] not in needed:
            op = ops[made[value]]
            needed.add(made[value])
            waiting += [*op.operands, *find_captures(op, made)]
    chosen = [ops[i] for i in sorted(needed)]
    return make_template(operands, chosen, dict(numbers), made, results)


def _drop_unchanging(main: ir.Operation) -> None:
    """Take out ops that give a value the type it has.

    TensorFlow's top_k sets sizes to what they are, which the TPU compiler takes for dynamic sizes.
    """
    for block in blocks(main):
        for view in list(block.operations):
            op = view.operation
            if op.name in _UNCHANGING and op.results[0].type == op.operands[0].type:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
