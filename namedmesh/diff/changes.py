"""Changes: what two lists of tensors or of collectives have in common, and what not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from namedmesh.diff.pairing import Key, pair_items
from namedmesh.planning.plan_record import CollectiveRecord, TensorRecord

R = TypeVar("R", TensorRecord, CollectiveRecord)


@dataclass(frozen=True)
class Changes(Generic[R]):
    """What differs between the tensors, or the collectives, of two plans.

    Attributes:
        changed: Those that both have, but not alike: before and after.
        came: Those that only the second has.
        went: Those that only the first has.
        equal: How many both have alike.
    """

    changed: tuple[tuple[R, R], ...]
    came: tuple[R, ...]
    went: tuple[R, ...]
    equal: int

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
        return {
            "changed": [
                {"before": dataclasses.asdict(old), "after": dataclasses.asdict(new)}
                for old, new in self.changed
            ],
            "came": [dataclasses.asdict(one) for one in self.came],
            "went": [dataclasses.asdict(one) for one in self.went],
            "equal": self.equal,
        }
