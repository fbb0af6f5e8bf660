"""Pairs what two sequences have in common, from the best evidence to the weakest."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")
Key = Callable[[T], Hashable]


def pair_items(
    before: Sequence[T], after: Sequence[T], keys: Sequence[Key[T]]
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Pair the items of two sequences, each with at most one of the other.

    Items that agree in the first key are paired first, in their order; what is left by the second
    key, and so on. Of a key that one side has more often, those pair up that stand between the
    same neighbours.
    """
    pairs: dict[int, int] = {}  # from positions after to positions before
    olds, news = list(range(len(before))), list(range(len(after)))
    for key in keys:
        found = _pair_by([key(one) for one in before], olds, [key(one) for one in after], news)
        pairs.update(found)
        taken = set(found.values())
        olds = [i for i in olds if i not in taken]
        news = [i for i in news if i not in found]
    paired = [(before[pairs[i]], after[i]) for i in sorted(pairs)]
    return paired, [before[i] for i in olds], [after[i] for i in news]


def _pair_by(
    old_keys: Sequence[Hashable], olds: Sequence[int], new_keys: Sequence[Hashable],
    news: Sequence[int],
) -> dict[int, int]:  # fmt: skip
    """Pair the positions of equal keys."""
    groups: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for i in olds:
        groups[old_keys[i]][0].append(i)
    for i in news:
        groups[new_keys[i]][1].append(i)
    pairs: dict[int, int] = {}
    for one, other in groups.values():
        if len(one) != len(other) and one and other:
            pairs.update(_align(old_keys, one, new_keys, other))
        else:
            pairs.update(zip(other, one, strict=False))
    return pairs


def _align(
    old_keys: Sequence[Hashable], olds: list[int], new_keys: Sequence[Hashable], news: list[int]
) -> dict[int, int]:
    """Pair positions of one key that the sides have differently often, by their neighbours."""
    around = ([_neighbours(old_keys, i) for i in olds], [_neighbours(new_keys, i) for i in news])
    blocks = difflib.SequenceMatcher(None, *around, autojunk=False).get_matching_blocks()
    pairs = {news[block.b + i]: olds[block.a + i] for block in blocks for i in range(block.size)}
    taken = set(pairs.values())
    left = (i for i in olds if i not in taken)
    return pairs | dict(zip((i for i in news if i not in pairs), left, strict=False))


def _neighbours(keys: Sequence[Hashable], i: int) -> tuple[Hashable, ...]:
    """The keys before and after a position."""
    return (keys[i - 1] if i else None, keys[i + 1] if i + 1 < len(keys) else None)
