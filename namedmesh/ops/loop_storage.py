"""Loop storage: the tensors that a loop keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from namedmesh.errors.errors import NamedMeshError, check_word, did_you_mean
from namedmesh.ir.context import Context
from namedmesh.ir.differentiate import body_vjp
from namedmesh.ir.op import Body, Op
from namedmesh.ir.tensor import Tensor
from namedmesh.ir.trace import current, trace_body
from namedmesh.ops.elementwise import SameValue

MOVE = "namedmesh_memory"  # as artifacts/stablehlo/prepare.py reads it
REMAT = ("none", "full", "dots", "fit")
SENT = 1000  # FLOPs that take as long as a byte that is sent: of chips between 500 and 5,000


class ToHost(SameValue):
    """The same value in the memory of the host, where the backend has one apart."""

    offloads = True
    copies = False
    memory = "pinned_host"  # as jax names it

    @property
    def repeatable(self) -> bool:
        return False

    def lower(self, context: Context, x: Any) -> Any:
        if not context.compiled:
            return x
        return context.xla.custom_call_v2(
            MOVE, [x], [context.tf.TensorSpec(x.shape, x.dtype)], self.memory
        )[0]


class ToDevice(ToHost):
    """The same value, back in the memory of the device."""

    offloads = False
    memory = "device"


def check_remat(what: str, remat: Any, words: Sequence[str] = REMAT) -> Any:
    """Return one of the words, a share of what can be stored, or a tuple of names; or raise."""
    if isinstance(remat, (list, tuple)) and all(isinstance(name, str) for name in remat):
        return tuple(remat)
    if isinstance(remat, (int, float)) and not isinstance(remat, bool) and 0 <= remat <= 1:
        return remat
    check_word(what, remat, words)
    return remat


def find_by_name(ops: Sequence[Op], names: Sequence[str]) -> set[Tensor]:
    """Find the tensors that some ops make under some names, each of which there must be."""
    found = {x: x.label for op in ops for x in op.outputs if not op.given and x.label in names}
    missing = [name for name in names if name not in found.values()]
    if missing:
        known = {x.label for op in ops for x in op.outputs}
        problem = f"remat: no tensor that is computed again is called {missing[0]}"
        raise NamedMeshError(problem, fix=did_you_mean(missing[0], known))
    return {*found}


def tensors_to_store(
    body: Body, floating: Sequence[int], remat: str | float | tuple[str, ...], along: str
) -> list[Tensor]:
    """Choose the tensors of a loop's body that are stored for the backward pass."""
    if remat == "full":
        return []
    if isinstance(remat, tuple):
        chosen = find_by_name(body.ops, remat)
    elif remat == "dots":
        chosen = {tensor for op in body.ops if op.kept_by_dots for tensor in op.outputs}
    else:
        chosen = find_smallest(body, find_needed(body, floating), along)
    computed = (tensor for op in body.ops for tensor in op.outputs)
    stored = [t for t in computed if t in chosen and not t.shape.named(along)]
    return drop_cheapest(body.ops, stored, remat)


def drop_cheapest(
    ops: Sequence[Op], stored: Sequence[Tensor], share: str | float | tuple[str, ...]
) -> list[Tensor]:
    """Drop what is cheapest to compute again for its bytes, until a share of all bytes is left."""
    sizes = {x: x.shape.elements * x.itemsize for op in ops for x in op.outputs}
    whole, left = {*stored}, sum(sizes[x] for x in stored)
    limit = left if isinstance(share, (str, tuple)) else share * left
    flops: dict[Tensor, float] = {}  # with those of what it is made of, back to what is stored
    for op in ops:
        before = max((flops[x] for x in op.inputs if x in flops and x not in whole), default=0)
        for x in op.outputs:
            flops[x] = before + op.flops() + SENT * sizes[x] * op.states_place
    dropped = set[Tensor]()
    for x in sorted(stored, key=lambda x: flops[x] / max(sizes[x], 1)):
        if left > limit:
            dropped.add(x)
            left -= sizes[x]
    return [x for x in stored if x not in dropped]


def find_needed(body: Body, floating: Sequence[int]) -> set[Tensor]:
    """Find the tensors of a body that its derivative reads, by differentiating it once."""
    needed: set[Tensor] = set()

    def note(known: dict[Tensor, Tensor], reverse_start: int) -> None:
        ours = {new: old for old, new in known.items()}
        reads = (tensor for op in current("scan").ops[reverse_start:] for tensor in op.inputs)
        needed.update(ours[tensor] for tensor in reads if tensor in ours)

    def probe(*values: Tensor) -> list[Tensor]:
        count = len(body.arguments)
        return body_vjp(body, values[:count], values[count:], floating, watch=note)

    tensors = (*body.arguments, *body.outputs)
    trace_body(probe, [(tensor.shape, tensor.dtype, tensor.label) for tensor in tensors])
    return needed.difference(body.arguments)


def find_smallest(body: Body, needed: Collection[Tensor], along: str) -> set[Tensor]:
    """Find the fewest bytes from which all that is needed follows by ops that fuse."""
    # A minimum cut between the tensors that cannot be computed again (products, reductions, what is
    # communicated) and those that are needed, in which a tensor costs its bytes; of equal cuts, the
    # one closest to the needed tensors.
    import networkx  # takes as long to import as a large program to trace

    graph: Any = networkx.DiGraph()
    for source, target, size in _find_edges(body, needed, along):
        graph.add_edge(source, target, **({} if size is None else {"capacity": size}))
    if "fixed" not in graph or "needed" not in graph:
        return set()
    _, (fixed, _) = networkx.minimum_cut(graph, "fixed", "needed")
    made = (tensor for op in body.ops for tensor in op.outputs)
    return {t for t in made if ("made", id(t)) in fixed and ("stored", id(t)) not in fixed}


def _find_edges(
    body: Body, needed: Collection[Tensor], along: str
) -> Iterator[tuple[Any, Any, int | None]]:
    """Yield the edges of the graph to cut, each with its capacity; None is infinite."""
    for op in body.ops:
        for tensor in () if op.given else op.outputs:
            made, stored = ("made", id(tensor)), ("stored", id(tensor))
            storable = not tensor.shape.named(along)
            size = tensor.shape.elements * tensor.itemsize
            yield made, stored, size if storable else None
            if tensor in needed:
                yield stored, "needed", None
            if is_repeated(body, op) or not storable:
                for operand in op.inputs:
                    yield ("stored", id(operand)), made, None
            else:
                yield "fixed", made, None


def is_repeated(body: Body, op: Op) -> bool:
    """Return whether the backward pass may compute an op again."""
    # A renamed dimension may be gathered, but a carry under another name is not worth storing.
    renamed = op.rearranges and {*op.inputs} <= {*body.arguments}
    return op.repeatable or (renamed and bool(op.placement().renames))
