import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from examples.m4.input.batches import (
    Batches,
    Position,
    evaluation_batches,
    token_languages,
)
from examples.m4.input.sampling import shares
from namedmesh.errors.errors import NamedMeshError
from tests.m4.input.synthetic import corpus, tokens
from tests.m4.input.unpacking import unpacked

NAMES = [
    "source",
    "source_positions",
    "source_segments",
    "target",
    "target_positions",
    "target_segments",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tokens(tmp_path_factory.mktemp("input") / "train")


def stream(data, group=8, source=32, target=24, **options) -> Batches:
    return Batches(
        data, group, source, target, **{"seed": 1, "temperature": 5.0, "chunk": 100, **options}
    )


def taken(batches, count: int) -> list:
    return list(itertools.islice(batches, count))


def assert_same(some: list, others: list) -> None:
    assert len(some) == len(others)
    for (arrays, position), (other_arrays, other_position) in zip(some, others, strict=True):
        assert position == other_position
        for name in NAMES:
            np.testing.assert_array_equal(arrays[name], other_arrays[name])


def examples(data, arrays) -> list[int]:
    """The numbers of the examples in a batch, found by their tokens."""
    known = {
        (tuple(data.source[index]), tuple(data.target[index])): index for index in range(len(data))
    }
    rows = zip(unpacked(arrays, "source"), unpacked(arrays, "target"), strict=True)
    return [known[pair] for sources, targets in rows for pair in zip(sources, targets, strict=True)]


def test_batches_have_their_names_shapes_and_type(data):
    ((arrays, position),) = taken(stream(data), 1)
    assert sorted(arrays) == NAMES and isinstance(position, Position)
    for name, array in arrays.items():
        assert array.dtype == np.int32 and array.shape == (
            8,
            32 if name.startswith("source") else 24,
        )


def test_the_stream_is_that_of_the_sampler(data):
    batches = stream(data, group=1)
    numbers, chunk = Counter(), 0
    for arrays, position in batches:
        if position.chunk == 3:
            break
        numbers.update(examples(data, arrays))
        chunk = position.chunk
    assert chunk == 2
    assert numbers == Counter(
        np.concatenate([batches.sampler.chunk(number) for number in range(3)]).tolist()
    )


def test_languages_come_in_the_shares_of_those_that_fit(data):
    batches = stream(data, source=20)
    fit = Counter(data.language[(data.source.lengths <= 20) & (data.target.lengths <= 24)].tolist())
    assert {
        name: data.counts[name] - fit[place] for place, name in enumerate(data.languages)
    } == batches.dropped
    assert sum(batches.dropped.values()) > 0
    seen = Counter()
    for step in itertools.islice(batches.steps(), 80):
        seen.update(step.languages[step.languages >= 0].tolist())
    expected = shares({name: fit[place] for place, name in enumerate(data.languages)}, 5.0)
    for place, name in enumerate(data.languages):
        assert seen[place] / seen.total() == pytest.approx(expected[name], abs=0.02)


def test_a_step_tells_the_language_of_every_token(data):
    for step in itertools.islice(stream(data).steps(), 5):
        by_token = token_languages(step.languages, step.arrays["target_segments"])
        np.testing.assert_array_equal(by_token == -1, step.arrays["target"] == 0)
        firsts = by_token[(step.arrays["target_positions"] == 0) & (step.arrays["target"] > 0)]
        assert firsts.tolist() == data.language[examples(data, step.arrays)].tolist()


@pytest.mark.parametrize("group", [1, 8, 50])
def test_the_stream_continues_from_any_position(data, group):
    whole = taken(stream(data, group), 25)
    for place in (0, 1, 6, 7, 13, 23):
        position = Position(**json.loads(json.dumps(dataclasses.asdict(whole[place][1]))))
        assert_same(taken(stream(data, group, start=position), 24 - place), whole[place + 1 :])


def test_the_stream_continues_at_the_end_of_a_chunk_and_with_another_group(data):
    end = len(stream(data).chunk(0))
    assert_same(
        taken(stream(data, start=Position(0, end)), 3),
        taken(stream(data, start=Position(1, 0)), 3),
    )
    rows = taken(stream(data, 1), 40)
    for place, (arrays, position) in enumerate(taken(stream(data, 4), 10)):
        assert position == rows[4 * place + 3][1]
        np.testing.assert_array_equal(
            arrays["source"],
            np.concatenate([row["source"] for row, _ in rows[4 * place : 4 * place + 4]]),
        )


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_all_processes_together_have_the_batch_of_one(data, processes):
    whole = taken(stream(data), 20)
    shards = [
        taken(stream(data, process=process, processes=processes), 20)
        for process in range(processes)
    ]
    joined = [
        (
            {name: np.concatenate([shard[step][0][name] for shard in shards]) for name in NAMES},
            shards[-1][step][1],
        )
        for step in range(20)
    ]
    assert_same(joined, whole)


def test_a_stream_that_goes_on_with_fewer_processes_has_the_same_batches(data):
    whole = iter(taken(stream(data).read_from(None), 18))
    position = None
    for processes in (4, 2, 1):
        shards = [
            taken(stream(data, process=one, processes=processes).read_from(position), 6)
            for one in range(processes)
        ]
        for parts in zip(*shards, strict=True):
            arrays, position = next(whole)
            assert all(other == position for _, other in parts)
            for name in NAMES:
                joined = np.concatenate([own[name] for own, _ in parts])
                np.testing.assert_array_equal(joined, arrays[name])


def test_rows_have_at_most_so_many_segments(data):
    arrays, _ = taken(stream(data, source=64, target=64, most=2), 1)[0]
    assert arrays["source_segments"].max() == 2 == arrays["target_segments"].max()
    assert taken(stream(data, source=64, target=64), 1)[0][0]["source_segments"].max() > 2


def test_the_digest_is_of_the_rows(data):
    assert (
        stream(data).digest == stream(data, 4, process=1, processes=2, start=Position(3, 1)).digest
    )
    others = [
        stream(data, seed=2),
        stream(data, source=40),
        stream(data, temperature=1.0),
        stream(data, chunk=99),
    ]
    assert len({one.digest for one in (stream(data), *others)}) == 5


def test_three_sentences_are_enough(tmp_path):
    small = tokens(
        tmp_path / "train",
        {"de": [("ein Haus", "a house"), ("zwei Bäume", "two trees")], "ru": [("дом", "house")]},
    )
    batches = Batches(small, 4, 32, 32, seed=0, temperature=5.0)
    seen = Counter(number for arrays, _ in taken(batches, 10) for number in examples(small, arrays))
    assert set(seen) == {0, 1, 2}


def test_mistakes_are_errors(data):
    with pytest.raises(
        NamedMeshError, match="none of the 877 examples fits into a row of 1 source and 24"
    ) as raised:
        stream(data, source=1)
    assert "the closest has" in str(raised.value)
    with pytest.raises(NamedMeshError, match="process 0 of 3 cannot have its share of 8 rows"):
        stream(data, processes=3)
    with pytest.raises(NamedMeshError, match="process 2 of 2"):
        stream(data, process=2, processes=2)
    with pytest.raises(NamedMeshError, match="the stream has no row 1000 in chunk 2"):
        next(iter(stream(data, start=Position(2, 1000))))


def test_every_run_gives_the_same_batches(tmp_path):
    program = """if True:
        import hashlib, itertools, sys
        from examples.m4.input.batches import Batches
        from tests.m4.input.synthetic import corpus, tokens
        state = hashlib.sha256()
        data = tokens(sys.argv[1], corpus())
        batches = Batches(data, 8, 32, 24, seed=1, temperature=5.0)
        for arrays, position in itertools.islice(batches, 20):
            for name in sorted(arrays):
                state.update(arrays[name].tobytes())
        print(state.hexdigest(), position)
    """
    root = pathlib.Path(__file__).parents[3]
    answers = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1] and "Position" in answers[0]


@pytest.mark.parametrize("by_length", [False, True])
def test_evaluation_has_every_example_once_with_its_number(data, by_length):
    seen = []
    for batch in evaluation_batches(data, 50, 60, 40, by_length=by_length):
        assert sorted(batch.arrays) == NAMES and (batch.cut_sources, batch.cut_targets) == (0, 0)
        assert batch.arrays["source"].shape == (50, 60) and batch.arrays["target"].shape == (50, 40)
        for number, sources, targets in zip(
            batch.examples,
            unpacked(batch.arrays, "source"),
            unpacked(batch.arrays, "target"),
            strict=True,
        ):
            if number < 0:
                assert sources == targets == []
            else:
                assert sources == [tuple(data.source[number])] and targets == [
                    tuple(data.target[number])
                ]
        seen += batch.examples.tolist()
    assert len(seen) == 900 and seen[877:] == [-1] * 23
    expected = (
        sorted(range(877), key=lambda number: len(data.source[number]))
        if by_length
        else list(range(877))
    )
    assert seen[:877] == expected


def test_evaluation_cuts_what_is_too_long_and_counts_it():
    pairs = [([5, 6, 7, 8, 1], [9, 1]), ([5, 6, 7, 1], [9, 10, 11, 1]), ([5, 1], [])]
    (batch,) = evaluation_batches(pairs, 4, 4, 3)
    assert batch.arrays["source"].tolist() == [
        [5, 6, 7, 1],
        [5, 6, 7, 1],
        [5, 1, 0, 0],
        [0, 0, 0, 0],
    ]
    assert batch.arrays["target"].tolist() == [[9, 1, 0], [9, 10, 11], [0, 0, 0], [0, 0, 0]]
    assert batch.examples.tolist() == [0, 1, 2, -1] and (batch.cut_sources, batch.cut_targets) == (
        1,
        1,
    )


def test_the_stream_is_read_with_positions_as_json(data):
    whole = taken(stream(data).read_from(None), 10)
    typed = [(arrays, Position(**position)) for arrays, position in whole]
    assert_same(typed, taken(stream(data), 10))
    position = json.loads(json.dumps(whole[3][1]))
    assert_same(taken(stream(data).read_from(position), 6), whole[4:])


def test_the_corpus_of_these_tests_has_no_pair_twice():
    pairs = [pair for language in corpus().values() for pair in language]
    assert len(set(pairs)) == len(pairs) == 877
