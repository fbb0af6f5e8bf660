"""What a collective sends over the busiest link of a TPU v3 torus: a model of its time.

Counted are bytes, not messages: the time is that of a collective large enough for latency not to
matter. The cores of a chip exchange data for nothing, and links carry both directions at once.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

from namedmesh.aot.target import GENERATIONS, Target
from namedmesh.aot.torus import Torus

GENERATION = "v3"
SQUARES = (32, 128, 512)  # cores of slices as wide as long whose links do not close to rings
LINK_BYTES_PER_SECOND = 656e9 / 8  # assumed of a link; scales every estimate alike


def slice_of(partitions: int) -> Target:
    """The TPU v3 slice of so many cores that is nearest to a square, a power of two of them."""
    chips = partitions // GENERATIONS[GENERATION].cores
    width = 2 ** (int(math.log2(chips)) // 2)
    return Target("tpu", GENERATION, (width, chips // width))


def estimate_link_bytes(kind: str, size: int, partitions: int) -> float:
    """What passes over the busiest link, one direction of it, while a collective runs.

    Args:
        kind: Such as `AllReduce`, over all partitions; a CollectivePermute goes from each to the
            next, in the order in which devices are listed.
        size: The bytes of a device's buffer, on its larger side.
        partitions: How many cores the slice has.

    Returns:
        The bytes; 0 where everything stays on a chip.
    """
    if partitions <= GENERATIONS[GENERATION].cores:
        return 0.0
    target = slice_of(partitions)
    if kind == "AllToAll":
        return size * _exchange(target)
    if kind == "CollectivePermute":
        return size * _pass_on(target)
    gather = size * _gather(target)
    return 2 * gather if kind == "AllReduce" else gather


def _gather(target: Target) -> float:
    """An AllGather of one byte in all: the share of it that the busiest link carries.

    Half of the data goes along the first dimension and then along the second, the other half the
    other way round, so that all links are busy. A ReduceScatter is the same backwards.
    """
    chips, time = math.prod(target.shape), 0.0
    held = [1 / chips, 1 / chips]  # what a chip has of either half before a phase
    orders = ((0, 1), (1, 0))
    for phase in range(2):
        shares = []
        for half, order in enumerate(orders):
            size, ring = target.shape[order[phase]], target.rings[order[phase]]
            sent = (size - 1) * held[half] / 2
            shares.append(sent / 2 if ring else sent)
            held[half] *= size
        time += max(shares)
    return time


def _exchange(target: Target) -> float:
    """An AllToAll of one byte from every core: what the busiest link carries.

    Data goes along one dimension and then the other. Of a line of n chips the link in the middle
    carries what one half sends to the other; on a ring all links carry the same.
    """
    cores, loads = GENERATIONS[GENERATION].cores, []
    for size, ring in zip(target.shape, target.rings, strict=True):
        if ring:
            loads.append(sum(min(i, size - i) for i in range(size)) / size / 2)
        else:
            loads.append((size // 2) * (size - size // 2) / size)
    return cores * max(loads)


def _pass_on(target: Target) -> int:
    """Every device sends to the next: how many of these messages share the busiest link."""
    torus = Torus.of_target(target)
    assert torus is not None, "a TPU slice has a torus"
    loads: Counter[tuple] = Counter()
    places = torus.places
    for place, goal in itertools.pairwise([*places, places[0]]):
        loads.update(_links(place, goal, target))
    return max(loads.values())


def _links(place: tuple[int, ...], goal: tuple[int, ...], target: Target) -> list[tuple]:
    """The links on the way between two chips, the first dimension first."""
    links, here = [], list(place)
    for i, (size, ring) in enumerate(zip(target.shape, target.rings, strict=True)):
        ahead = (goal[i] - here[i]) % size
        forward = ahead <= size - ahead if ring else goal[i] > here[i]
        while here[i] != goal[i]:
            links.append((i, tuple(here), forward))
            here[i] = (here[i] + (1 if forward else -1)) % size
    return links
