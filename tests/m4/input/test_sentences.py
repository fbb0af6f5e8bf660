import numpy as np
import pytest
import scipy.optimize

from examples.m4.input.sampling import shares
from examples.m4.input.sentences import SentenceSampler, fit_weights
from namedmesh.errors.errors import NamedMeshError

# 200 sentences: all are in language 0, half of them in language 1, ten in language 2.
ENGLISH = np.concatenate([np.arange(200), np.arange(0, 200, 2), np.arange(10) * 20])
LANGUAGE = np.repeat([0, 1, 2], [200, 100, 10])


def sampler(size=50, seed=3, temperature=1.0, examples=None) -> SentenceSampler:
    examples = np.arange(len(ENGLISH)) if examples is None else examples
    return SentenceSampler(
        LANGUAGE, ENGLISH, examples, seed=seed, temperature=temperature, size=size
    )


def take(stream: SentenceSampler, chunks: int) -> np.ndarray:
    return np.concatenate([stream.chunk(number) for number in range(chunks)])


def test_every_sentence_comes_once_before_any_comes_back():
    stream = sampler()
    assert stream.sentences == 200
    for visit in range(5):
        examples = np.concatenate([stream.chunk(4 * visit + part) for part in range(4)])
        assert sorted(ENGLISH[examples]) == list(range(200))


def test_a_chunk_over_two_visits_and_any_order_of_asking():
    whole = take(sampler(size=400), 3)
    np.testing.assert_array_equal(take(sampler(size=300), 4), whole)
    stream = sampler(size=300)
    parts = {number: stream.chunk(number) for number in (3, 0, 2, 1)}
    np.testing.assert_array_equal(np.concatenate([parts[n] for n in range(4)]), whole)


def test_seeds_make_other_orders():
    assert take(sampler(seed=1), 4).tolist() != take(sampler(seed=2), 4).tolist()


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_languages_have_their_shares_as_far_as_sentences_allow(temperature):
    drawn = np.bincount(LANGUAGE[take(sampler(temperature=temperature), 4 * 200)], minlength=3)
    wanted = [*shares({"0": 200, "1": 100, "2": 10}, temperature).values()]
    most = [1.0, 0.5, 0.05]  # no language comes more often than its sentences
    expected = [min(share, limit) for share, limit in zip(wanted, most, strict=True)]
    assert drawn[2] / drawn.sum() == pytest.approx(expected[2], rel=0.1)
    # What one language cannot have, the others share.
    assert 0.9 <= drawn[1] / drawn.sum() / expected[1] <= 1.05 / sum(expected)


def test_the_languages_of_a_sentence_come_evenly():
    """Sentence 0 is in three languages; over visits no count is far from its share."""
    stream = sampler(temperature=1e9)
    examples = take(stream, 4 * 300)
    of_first = LANGUAGE[examples[ENGLISH[examples] == 0]]
    counts = np.bincount(of_first, minlength=3)
    for visits in range(50, 301, 50):
        so_far = np.bincount(of_first[:visits], minlength=3)
        assert np.abs(so_far - visits * counts / 300).max() < 4


def test_weights_are_fitted_by_a_literal_count():
    owners = np.array([0, 1, 0, 1, 0])
    sentences = np.array([0, 0, 1, 1, 2])
    weights = fit_weights(owners, sentences, np.array([0.5, 0.5]))
    drawn = np.zeros(2)
    for sentence in range(3):
        here = [i for i in range(5) if sentences[i] == sentence]
        total = sum(weights[owners[i]] for i in here)
        for i in here:
            drawn[owners[i]] += weights[owners[i]] / total / 3
    np.testing.assert_allclose(drawn, [0.5, 0.5], atol=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0, 1e9])
def test_shares_are_as_near_to_those_wanted_as_any_choice_can_be(temperature):
    """Poor languages that share their few sentences, and rich ones with sentences of their own.

    The independent answer is a linear program over every way to choose: the chance of each example,
    in all one for a sentence, with the least sum of differences from the shares.
    """
    counts = [240, 200, 120, 60, 14, 12, 10, 6, 3]
    random = np.random.default_rng(1)
    popular = np.concatenate([random.permutation(40), np.arange(40, 300)])
    chosen = [np.sort(popular[:count]) for count in counts]
    chosen[0] = np.arange(60, 300)  # alone in most of them
    owners = np.repeat(np.arange(len(counts)), counts)
    _, sentences = np.unique(np.concatenate(chosen), return_inverse=True)
    order = np.argsort(sentences, kind="stable")
    owners, sentences = owners[order], sentences[order]
    wanted = np.array([*shares({str(n): c for n, c in enumerate(counts)}, temperature).values()])

    size, number, total = len(owners), len(counts), sentences[-1] + 1
    of_sentence = np.zeros((total, size + number))
    of_sentence[sentences, np.arange(size)] = 1
    share = np.zeros((number, size))
    share[owners, np.arange(size)] = 1 / total
    away = np.block([[share, -np.eye(number)], [-share, -np.eye(number)]])
    best = scipy.optimize.linprog(
        np.repeat([0.0, 1.0], [size, number]), A_ub=away, b_ub=np.concatenate([wanted, -wanted]),
        A_eq=of_sentence, b_eq=np.ones(total),
    )  # fmt: skip

    each = fit_weights(owners, sentences, wanted)[owners]
    drawn = np.bincount(owners, each / np.bincount(sentences, each)[sentences]) / total
    assert np.abs(drawn - wanted).sum() <= best.fun + 0.02


def test_only_some_examples_are_drawn():
    some = np.flatnonzero(LANGUAGE == 1)
    assert {*take(sampler(examples=some), 8)} == {*some}


def test_nothing_to_sample_is_an_error():
    with pytest.raises(NamedMeshError, match="no example to sample"):
        sampler(examples=np.arange(0))
