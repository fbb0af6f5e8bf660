"""The operators of the paper's table of scalability, and the collectives, as small programs.

Every case keeps a partition's work the same, as the paper does: the dimensions that it calls O(D)
grow with the number of partitions D, the others stay. A dimension that is split stands in brackets:
`[A]B,BC->[A]C`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import namedmesh as nm

CAPACITY = 2048  # places that a group has for all experts together; the paper's C is this over D


@dataclass(frozen=True)
class Case:
    """An operator with one sharding.

    Attributes:
        operator: The operator's name.
        split: Its dimensions, those that are split in brackets.
        grows: The dimensions that grow with the number of partitions.
        compute: What the paper says of a partition's compute.
        communication: What it says of a partition's communication, and the collective.
        layout: The dimensions that lie on the mesh axis `all`.
        trace: Makes the program for so many partitions.
        source: Where the paper says so: its table of operators, or its section 5.4.
    """

    operator: str
    split: str
    grows: str
    compute: str
    communication: str
    layout: str
    trace: Callable[[int], nm.Program]
    source: str = "table"

    @property
    def paper(self) -> str:
        """The paper's claims in a line."""
        return f"compute {self.compute}, communication {self.communication}"

    def plan(self, partitions: int) -> nm.Plan:
        """Plan the operator on so many partitions."""
        return nm.plan(self.trace(partitions), nm.Mesh(all=partitions), self.layout)


def trace_add(partitions: int) -> nm.Program:
    """Add([A],[A]->[A])."""
    A = nm.Dimension("a", 65536 * partitions)
    return nm.trace(lambda x, y: x + y, nm.spec([A]), nm.spec([A]))


def trace_split_rows(partitions: int) -> nm.Program:
    """Matmul([A]B,BC->[A]C)."""
    A, B, C = nm.dims(f"a={128 * partitions} b=128 c=128")
    return nm.trace(lambda x, y: nm.einsum([x, y], [A, C]), nm.spec([A, B]), nm.spec([B, C]))


def trace_split_sum(partitions: int) -> nm.Program:
    """Matmul(A[B],[B]C->AC)."""
    A, B, C = nm.dims(f"a=128 b={128 * partitions} c=128")
    return nm.trace(lambda x, y: nm.einsum([x, y], [A, C]), nm.spec([A, B]), nm.spec([B, C]))


def trace_rows_and_sum(partitions: int) -> nm.Program:
    """Matmul([A]B,[B]C->[A]C), the second operand gathered."""
    A, B, C = nm.dims(f"a={128 * partitions} b={16 * partitions} c=128")

    def multiply(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        return nm.einsum([x, nm.replicate(y, B)], [A, C])

    return nm.trace(multiply, nm.spec([A, B], whole=[B]), nm.spec([B, C]))


def trace_rows_and_columns(partitions: int) -> nm.Program:
    """Matmul([A]B,B[C]->A[C]), the first operand gathered."""
    A, B, C = nm.dims(f"a={16 * partitions} b=128 c={128 * partitions}")

    def multiply(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        return nm.einsum([nm.replicate(x, A), y], [A, C])

    return nm.trace(multiply, nm.spec([A, B]), nm.spec([B, C]))


def trace_in_slices(sums: bool) -> Callable[[int], nm.Program]:
    """Matmul([A]B,B[C]->[A]C), an operand gathered in slices; or A[B],[B]C->[A]C, scattered so."""

    def trace(partitions: int) -> nm.Program:
        A, B, C = nm.dims(f"a={16 * partitions} b={128 * (partitions if sums else 1)} c=128")
        C = C if sums else C.resized(128 * partitions)
        return nm.trace(
            lambda x, y: nm.einsum([nm.relu(x), nm.relu(y)], [A, C]), nm.spec([A, B]),
            nm.spec([B, C]),
        )  # fmt: skip

    return trace


def trace_rows_and_sum_in_a_loop(partitions: int) -> nm.Program:
    """Matmul([A]B,[B]C->[A]C), the shards of the second operand going round the partitions.

    A is [partition, a] and B is [partition, b]; the first operand's B, which is whole, [block, b].
    """
    P, K, T = (nm.Dimension(name, partitions) for name in ("partition", "block", "iteration"))
    A, B, C = nm.dims("a=128 b=16 c=128")

    def multiply(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        def iteration(carry: tuple[nm.Tensor, nm.Tensor], number: nm.Tensor) -> tuple:
            total, moving = carry
            block = nm.remainder(nm.range(P) - number, partitions)  # which shard has come round
            total = total + nm.einsum([nm.gather(x, block, K), moving], [P, A, C])
            return (total, nm.roll(moving, P, 1)), None

        return nm.scan(iteration, (nm.zeros([P, A, C]), y), nm.range(T), over=T)[0][0]

    return nm.trace(multiply, nm.spec([P, A, K, B]), nm.spec([P, B, C]))


def trace_rows_and_columns_in_a_loop(partitions: int) -> nm.Program:
    """Matmul([A]B,B[C]->A[C]), the shards of the first operand going round the partitions.

    A is [partition, a] and C is [partition, c]; the result's A, which is whole, [block, a].
    """
    P, K, T = (nm.Dimension(name, partitions) for name in ("partition", "block", "iteration"))
    A, B, C = nm.dims("a=16 b=128 c=128")

    def multiply(x: nm.Tensor, y: nm.Tensor) -> nm.Tensor:
        def iteration(moving: nm.Tensor, _: nm.Tensor) -> tuple:
            return nm.roll(moving, P, 1), nm.einsum([moving, y], [P, A, C])

        products = nm.scan(iteration, x, nm.range(T), over=T)[1]
        iteration_of_block = nm.remainder(nm.range(P) - nm.range(K), partitions)
        return nm.transpose(nm.gather(products, iteration_of_block, T), [K, A, P, C])

    return nm.trace(multiply, nm.spec([P, A, B]), nm.spec([P, B, C]))


def trace_reduce(over: str) -> Callable[[int], nm.Program]:
    """Reduce([A]B->[A]) and Reduce([A]B->B)."""

    def trace(partitions: int) -> nm.Program:
        A, B = nm.dims(f"a={128 * partitions} b=1024")
        return nm.trace(lambda x: nm.sum(x, over={"a": A, "b": B}[over]), nm.spec([A, B]))

    return trace


def trace_dispatch(partitions: int) -> nm.Program:
    """Einsum([G]SEC,[G]SM->[E]GCM): the dispatch of tokens to experts, one of each a partition."""
    G, E = (nm.Dimension(name, partitions) for name in ("group", "expert"))
    S, C, M = nm.dims(f"seq=128 capacity={CAPACITY // partitions} model=128")

    def dispatch(mask: nm.Tensor, x: nm.Tensor) -> nm.Tensor:
        return nm.reshard(nm.einsum([mask, x], [E, G, C, M]), E)

    return nm.trace(dispatch, nm.spec([G, S, E, C], whole=[E]), nm.spec([G, S, M]))


def trace_convolution(partitions: int) -> nm.Program:
    """Convolution(BI[X]Y,xyIO->BO[X]Y) with windows of 3 by 3."""
    B, I, X, Y = nm.dims(f"batch=1 in=32 x={8 * partitions} y=64")  # noqa: E741
    H, W, O = nm.dims("window_x=3 window_y=3 out=32")  # noqa: E741
    return nm.trace(
        lambda x, w: nm.conv(x, w, {X: H, Y: W}), nm.spec([B, X, Y, I]), nm.spec([H, W, I, O])
    )


def trace_all_reduce(partitions: int, elements: int = 2**18) -> nm.Program:
    """Return the sum of a tensor from each partition, whole on all of them."""
    P, N = nm.dims(f"partition={partitions} n={elements}")
    return nm.trace(lambda x: nm.sum(x, over=P), nm.spec([P, N], whole=[N]))


def trace_reduce_scatter(partitions: int, elements: int = 2**18) -> nm.Program:
    """Return the sum of a tensor from each partition, a shard of it on each."""
    P, N = nm.dims(f"partition={partitions} n={elements}")
    return nm.trace(lambda x: nm.reshard(nm.sum(x, over=P), N), nm.spec([P, N], whole=[N]))


def trace_all_gather(partitions: int, elements: int = 2**14) -> nm.Program:
    """Return the tensors of all partitions, on each of them."""
    P, N = nm.dims(f"partition={partitions} n={elements}")
    return nm.trace(lambda x: nm.replicate(x, P), nm.spec([P, N], whole=[N]))


def trace_all_to_all(partitions: int, elements: int = 2**18) -> nm.Program:
    """Return a different shard of every partition's tensor to every other."""
    P, Q, N = nm.dims(f"partition={partitions} other={partitions} n={elements // partitions}")
    return nm.trace(lambda x: nm.reshard(x, Q), nm.spec([P, Q, N], whole=[Q]))


def trace_permute(partitions: int, elements: int = 2**18) -> nm.Program:
    """Return every partition's tensor to its neighbour."""
    P, N = nm.dims(f"partition={partitions} n={elements}")
    return nm.trace(lambda x: nm.roll(x, P, 1), nm.spec([P, N], whole=[N]))


CASES = {
    "add": Case("Add", "[A],[A]->[A]", "A", "O(1)", "0", "a:all", trace_add),
    "matmul_sum": Case(
        "Matmul", "A[B],[B]C->AC", "B", "O(1)", "O(1) AllReduce", "b:all", trace_split_sum
    ),
    "matmul_rows": Case("Matmul", "[A]B,BC->[A]C", "A", "O(1)", "0", "a:all", trace_split_rows),
    "matmul_rows_and_sum": Case(
        "Matmul", "[A]B,[B]C->[A]C", "A,B", "O(D)", "O(D) AllGather", "a:all, b:all",
        trace_rows_and_sum,
    ),
    "matmul_rows_and_sum_loop": Case(
        "Matmul", "[A]B,[B]C->[A]C", "A,B", "O(D)", "O(D) CollectivePermute", "partition:all",
        trace_rows_and_sum_in_a_loop,
    ),
    "matmul_rows_and_columns": Case(
        "Matmul", "[A]B,B[C]->A[C]", "A,C", "O(D)", "O(D) AllGather", "a:all, c:all",
        trace_rows_and_columns,
    ),
    "matmul_rows_and_columns_loop": Case(
        "Matmul", "[A]B,B[C]->A[C]", "A,C", "O(D)", "O(D) CollectivePermute", "partition:all",
        trace_rows_and_columns_in_a_loop,
    ),
    "reduce_rows": Case("Reduce", "[A]B->[A]", "A", "O(1)", "0", "a:all", trace_reduce("b")),
    "reduce_sum": Case(
        "Reduce", "[A]B->B", "A", "O(1)", "O(1) AllReduce", "a:all", trace_reduce("a")
    ),
    "dispatch": Case(
        "Einsum", "[G]SEC,[G]SM->[E]GCM", "G,E", "O(1)", "O(sqrt(D)) AllToAll",
        "group:all, expert:all", trace_dispatch,
    ),
    "convolution": Case(
        "Convolution", "BI[X]Y,xyIO->BO[X]Y", "X", "O(1)", "O(1) CollectivePermute", "x:all",
        trace_convolution,
    ),
    "all_reduce": Case(
        "AllReduce", "[P]N->N", "P", "-", "O(1) AllReduce", "partition:all", trace_all_reduce,
        "text",
    ),
    "reduce_scatter": Case(
        "ReduceScatter", "[P]N->[N]", "P", "-", "-", "partition:all, n:all", trace_reduce_scatter,
        "not in the paper",
    ),
    "all_gather": Case(
        "AllGather", "[P]N->PN", "P", "-", "O(D) AllGather", "partition:all", trace_all_gather,
        "text",
    ),
    "all_to_all": Case(
        "AllToAll", "[P]QN->P[Q]N", "P,Q", "-", "O(sqrt(D)) AllToAll", "partition:all, other:all",
        trace_all_to_all, "text",
    ),
    "collective_permute": Case(
        "CollectivePermute", "[P]N->[P]N", "P", "-", "O(1) CollectivePermute", "partition:all",
        trace_permute, "text",
    ),
}  # fmt: skip
