"""All entries, from the files that hold them."""

from __future__ import annotations

import functools

from benchmarks.coverage import (
    attention,
    by_hand,
    counting,
    elementwise,
    fourier,
    functions,
    indexing,
    layers,
    linear,
    random_numbers,
    reductions,
    structure,
)
from benchmarks.coverage.entry import Entry
from benchmarks.coverage.kit import Kit

FILES = (
    elementwise, reductions, counting, structure, indexing, random_numbers, functions, by_hand,
    attention, layers, linear, fourier,
)  # fmt: skip


@functools.cache
def make_entries(kit: Kit) -> dict[str, Entry]:
    """Make every entry at one size and dtype."""
    found: dict[str, Entry] = {}
    for file in FILES:
        more = file.entries(kit)
        assert not found.keys() & more.keys(), f"twice: {found.keys() & more.keys()}"
        found |= more
    return found


def make_entry(name: str, kit: Kit) -> Entry:
    """Make one entry."""
    return make_entries(kit)[name]
