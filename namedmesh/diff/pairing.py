"""Changes between two lists of tensors or collectives, paired by the best evidence first."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from namedmesh.records.codec import write_value
from namedmesh.records.collective import Collective
from namedmesh.records.tensor import TensorRecord

T = TypeVar("T")
R = TypeVar("R", TensorRecord, Collective)
Key = Callable[[T], Hashable]


@dataclass(frozen=True)
class Changes(Generic[R]):
    """The differences between the tensors, or the collectives, of two plans."""

    changed: tuple[tuple[R, R], ...]  # before and after
    came: tuple[R, ...]  # only in the second
    went: tuple[R, ...]  # only in the first
    equal: int  # how many both have alike

    @classmethod
    def between(
        cls,
        before: Sequence[R],
        after: Sequence[R],
        keys: Sequence[Key[R]],
        facts: Callable[[R], object],
    ) -> Changes[R]:
        """Compare two lists."""
        pairs, went, came = pair_items(before, after, keys)
        changed = tuple((old, new) for old, new in pairs if facts(old) != facts(new))
        return cls(changed, tuple(came), tuple(went), len(pairs) - len(changed))

    def __bool__(self) -> bool:
        return bool(self.changed or self.came or self.went)

    def to_json(self) -> dict[str, Any]:
        """Return the changes as values that JSON has."""
        changed = [
            {"before": write_value(old), "after": write_value(new)} for old, new in self.changed
        ]
        came, went = ([write_value(one) for one in ones] for ones in (self.came, self.went))
        return {"changed": changed, "came": came, "went": went, "equal": self.equal}


def pair_items(
    before: Sequence[T], after: Sequence[T], keys: Sequence[Key[T]]
) -> tuple[list[tuple[T, T]], list[T], list[T]]:
    """Pair the items of two sequences by the first key, what is left by the second, and so on."""
    pairs: dict[int, int] = {}  # from positions after to positions before
    olds, news = list(range(len(before))), list(range(len(after)))
    for key in keys:
        matches = _pair_by([key(one) for one in before], olds, [key(one) for one in after], news)
        pairs.update(matches)
        taken = set(matches.values())
        olds = [i for i in olds if i not in taken]
        news = [i for i in news if i not in matches]
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
            # One side has more of this key: pair those that stand between the same neighbours.
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
    """Return the keys before and after a position."""
    return (keys[i - 1] if i else None, keys[i + 1] if i + 1 < len(keys) else None)
