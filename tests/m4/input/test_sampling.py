import itertools
from collections import Counter

import numpy as np
import pytest

from examples.m4.input.sampling import Sampler, permutation, shares, walk
from namedmesh.errors.errors import NamedMeshError

COUNTS = {"large": 1000, "middle": 90, "small": 7, "tiny": 1}


def pools() -> dict[str, np.ndarray]:
    starts = dict(zip(COUNTS, (0, 1000, 1090, 1097), strict=True))
    return {name: np.arange(starts[name], starts[name] + count) for name, count in COUNTS.items()}


def sampler(size=64, temperature=5.0, seed=3) -> Sampler:
    return Sampler(pools(), seed=seed, temperature=temperature, size=size)


def language(example: int) -> str:
    return next(name for name, pool in pools().items() if example in pool)


@pytest.mark.parametrize("temperature", [1, 2, 5, 100])
def test_shares_are_the_formula(temperature):
    weights = np.array([(count / 1098) ** (1 / temperature) for count in COUNTS.values()])
    np.testing.assert_allclose(
        list(shares(COUNTS, temperature).values()), weights / weights.sum(), rtol=1e-12
    )


@pytest.mark.parametrize("temperature", [1, 5])
def test_the_stream_has_the_shares(temperature):
    stream = sampler(temperature=temperature)
    seen = Counter(language(example) for number in range(40) for example in stream.chunk(number))
    for name, share in shares(COUNTS, temperature).items():
        assert abs(seen[name] - 40 * 64 * share) < 1


@pytest.mark.parametrize("size", [1, 5, 64, 3000])
def test_each_language_is_gone_through_before_any_example_repeats(size):
    stream = sampler(size)
    examples = np.concatenate([stream.chunk(number) for number in range(6000 // size)])
    assert abs(len(examples) - 6000 // size * size) < len(COUNTS)
    for pool in pools().values():
        mine = examples[np.isin(examples, pool)]
        assert len(mine) > 2 * len(pool)
        for start in range(0, len(mine) - len(pool), len(pool)):
            assert sorted(mine[start : start + len(pool)]) == pool.tolist()


def test_a_language_in_the_order_of_the_cursor_is_one_permutation_after_another():
    order = np.concatenate(
        [
            walk(np.arange(5), first, first + 1, lambda epoch: permutation(5, epoch))
            for first in range(15)
        ]
    )
    for epoch in range(3):
        assert sorted(order[5 * epoch : 5 * epoch + 5]) == [0, 1, 2, 3, 4]
    whole = walk(np.arange(5), 0, 15, lambda epoch: permutation(5, epoch))
    np.testing.assert_array_equal(order, whole)
    assert len({tuple(whole[start : start + 5]) for start in (0, 5, 10)}) == 3


def test_a_chunk_does_not_depend_on_the_chunks_asked_for_before():
    forwards, used = sampler(), sampler()
    chunks = [forwards.chunk(number) for number in range(30)]
    for number in (29, 3, 17, 3, 0):
        np.testing.assert_array_equal(used.chunk(number), chunks[number])
    np.testing.assert_array_equal(sampler().chunk(10**9), used.chunk(10**9))


def test_cursors_count_what_came_before():
    stream = sampler()
    seen = Counter(language(example) for number in range(9) for example in stream.chunk(number))
    assert dict(seen) == stream.cursors(9)
    assert stream.epochs(9)["tiny"] == seen["tiny"] and set(stream.cursors(0).values()) == {0}


def test_the_order_of_the_pools_does_not_matter_and_the_seed_does():
    reverse = Sampler(dict(reversed(pools().items())), seed=3, temperature=5.0, size=64)
    np.testing.assert_array_equal(reverse.chunk(2), sampler().chunk(2))
    assert sampler(seed=4).chunk(2).tolist() != sampler().chunk(2).tolist()


def test_languages_are_mixed_within_a_chunk():
    names = [language(example) for example in sampler(1000, temperature=float("inf")).chunk(0)]
    same = sum(one == other for one, other in itertools.pairwise(names))
    assert (
        180 < same < 320
    )  # of four languages of one share each neighbour is the same one time in four


def test_permutations_are_the_same_for_ever():
    assert permutation(8, 0, "order", "de", 1).tolist() == [3, 6, 0, 4, 5, 7, 1, 2]


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), "5", None])
def test_a_temperature_that_is_none_is_an_error(temperature):
    with pytest.raises(NamedMeshError, match="the sampling temperature is"):
        sampler(temperature=temperature)


def test_nothing_to_sample_from_is_an_error():
    with pytest.raises(NamedMeshError, match="no example to sample"):
        Sampler({"de": np.arange(0)}, seed=0, temperature=1, size=8)


def test_rare_languages_do_not_all_come_at_once():
    rare = {f"l{number}": np.array([number]) for number in range(50)}
    stream = Sampler(
        rare, seed=0, temperature=1.0, size=5
    )  # a tenth of an example of each language in a chunk
    sizes = [len(stream.chunk(number)) for number in range(10)]
    assert sum(sizes) == 50 and max(sizes) < 15
