"""Beam search against an exhaustive search and one in plain Python; when it stops; sampling."""

import itertools

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import Beam, Cache, Greedy, Heads, Sample, decode

END = 1


class Chain:
    """A model whose next token depends on the last one, the step and the sum of the tokens before.

    It stores the tokens it was called with in its cache, as a real one stores keys and values.
    """

    def __init__(self, tables, hypotheses: int, flat: bool):
        self.tables = tables  # G T V W
        self.G, self.T, _, self.W = tables.shape.dims
        self.N = nm.Dimension("hypothesis", hypotheses)
        L, M, H, K = nm.dims("layer=1 model=1 heads=1 key=1")
        flat_dim = self.N if flat else None
        self.cache = Cache(L, self.T, Heads(M, H, K), [self.G, self.N], flat=flat_dim)

    def decode(self, method):
        seen = nm.zeros([self.T, self.G, self.cache.slot or self.N], "int32")
        first = nm.zeros([self.G, self.N], "int32")
        cache = {"time": self.cache.start(), "seen": [seen]}
        return decode(self.step, cache, first, self.T, method, end=END)

    def step(self, tokens, cache):
        slot, time = self.cache.slot, self.cache.advance(cache["time"])
        here = nm.equal(nm.range(self.T), time["step"])
        mine = nm.rename(tokens, self.N, slot) if slot else tokens
        seen = nm.where(here, mine, cache["seen"][0])
        # The last token is read back through the mask, so that a wrong mask or a wrong order shows.
        over = [self.T, slot] if slot else self.T
        last = nm.sum(nm.where(time["mask"] & here, seen, 0), over=over)
        rows = nm.sum(nm.where(here, self.tables, 0.0), over=self.T)  # G V W
        past = nm.cast(nm.sum(nm.where(time["mask"], seen, 0), over=over), "float32")
        V = self.tables.shape.dims[2]
        logits = nm.gather(rows, nm.transpose(last, [self.G, self.N]), V) + nm.sin(past) * nm.cast(
            nm.range(self.W), "float32"
        )
        return logits, {"time": time, "seen": [seen]}


def logits_of(table: np.ndarray, prefix: tuple[int, ...]) -> np.ndarray:
    """The same model for one sentence: what follows a prefix."""
    last = prefix[-1] if prefix else 0
    x = table[len(prefix), last] + np.sin(float(sum(prefix))) * np.arange(table.shape[-1])
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()


def penalty(length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha


def exhaustive(table: np.ndarray, alpha: float) -> list[tuple[float, tuple[int, ...]]]:
    """Every sequence that ends, with its score, best first."""
    T, _, W = table.shape
    found = []
    for length in range(T):
        for prefix in itertools.product([w for w in range(W) if w != END], repeat=length):
            sequence = (*prefix, END)
            total = sum(logits_of(table, sequence[:i])[sequence[i]] for i in range(length + 1))
            found.append((total / penalty(length + 1, alpha), sequence))
    return sorted(found, reverse=True)


def literal_beam(
    table: np.ndarray, width: int, alpha: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Ordinary beam search in plain Python, with no early stop."""
    T, _, W = table.shape
    alive, finished = [(0.0, ())], []
    for step in range(T):
        extended = [
            (score + logits_of(table, prefix)[w], (*prefix, w))
            for score, prefix in alive
            for w in range(W)
            if step < T - 1 or w == END
        ]
        extended = sorted(extended, reverse=True)[: 2 * width]
        finished += [(score / penalty(step + 1, alpha), s) for score, s in extended if s[-1] == END]
        finished = sorted(finished, reverse=True)[:width]
        alive = [(score, s) for score, s in extended if s[-1] != END][:width]
    return finished


def dims_of(tables: np.ndarray) -> list[nm.Dimension]:
    names = ("group", "step", "token", "word")
    return [nm.Dimension(name, size) for name, size in zip(names, tables.shape, strict=True)]


def searched(tables: np.ndarray, width: int, flat: bool, alpha: float, layout: str = "group:all"):
    return decoded(tables, width, lambda N: Beam(N, alpha=alpha), flat, layout)


def decoded(tables: np.ndarray, width: int, method, flat: bool = False, layout: str = "group:all"):
    def program(tables):
        chain = Chain(tables, width, flat)
        return chain.decode(method(chain.N))

    specs = nm.spec(dims_of(tables))
    step = nm.compile(program, tables=specs, mesh=nm.Mesh(all=2), layout=layout, strict=True)
    found = {name: np.asarray(value) for name, value in step(None, tables)[1].items()}
    return found["sequences"], found["scores"], int(found["steps"])


def random_tables(seed: int, G: int, T: int, W: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(G, T, W, W), scale=2.0).astype(np.float32)


def padded(sequence: tuple[int, ...], length: int) -> list[int]:
    return [*sequence, *[0] * (length - len(sequence))]


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_beam_wide_enough_finds_every_sequence_in_order(flat, alpha):
    tables = random_tables(0, G=4, T=3, W=4)
    every = [exhaustive(table, alpha) for table in tables]
    width = len(every[0])
    assert width == 1 + 3 + 9
    sequences, scores, _ = searched(tables, width, flat, alpha)
    for g, ranked in enumerate(every):
        np.testing.assert_allclose(scores[g], [score for score, _ in ranked], rtol=1e-5, atol=1e-5)
        assert sequences[g].tolist() == [padded(sequence, 3) for _, sequence in ranked]


@pytest.mark.parametrize("seed", range(3))
def test_both_forms_equal_a_beam_search_written_out(seed):
    tables = random_tables(seed, G=8, T=7, W=6)
    expected = [literal_beam(table, 3, 0.6) for table in tables]
    for flat in (True, False):
        sequences, scores, _ = searched(tables, 3, flat, 0.6)
        for g, ranked in enumerate(expected):
            np.testing.assert_allclose(scores[g], [score for score, _ in ranked], rtol=1e-5)
            assert sequences[g].tolist() == [padded(sequence, 7) for _, sequence in ranked]


def test_the_loop_stops_when_nothing_better_can_come():
    tables = random_tables(1, G=2, T=40, W=5)
    tables[:, :, :, END] += (
        100.0 * (np.arange(40) >= 3)[None, :, None]
    )  # none goes on beyond the fourth token
    expected = [
        [padded(sequence, 40) for _, sequence in literal_beam(table, 2, 0.6)] for table in tables
    ]
    for flat in (True, False):
        sequences, _, steps = searched(tables, 2, flat, 0.6)
        assert steps < 10
        assert sequences.tolist() == expected


def test_scores_and_sequences_are_the_same_under_another_layout():
    tables = random_tables(2, G=4, T=5, W=4)
    one, other = (searched(tables, 3, True, 0.6, layout) for layout in ("group:all", "word:all"))
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_allclose(one[1], other[1], rtol=1e-6)


def test_greedy_takes_the_likeliest_token_and_stops():
    tables = random_tables(3, G=4, T=9, W=5)
    tables[:, 5:, :, END] += 50.0
    sequences, scores, steps = decoded(tables, 1, lambda N: Greedy())
    longest = 0
    for g, table in enumerate(tables):
        sequence, total = (), 0.0
        while len(sequence) < 9 and END not in sequence:
            logits = logits_of(table, sequence)
            total += logits.max()
            sequence += (int(logits.argmax()),)
        longest = max(longest, len(sequence))
        assert sequences[g, 0].tolist() == padded(sequence, 9)
        assert scores[g, 0] == pytest.approx(total, rel=1e-5)
    assert steps == longest < 9


def test_the_likeliest_of_a_split_vocabulary_are_sent_alone():
    """All logits were sorted for every token, and nothing told it."""
    B, V, H, T = nm.dims("batch=64 vocab=50264 hidden=16 step=4")

    def write(first, **options):
        def step(tokens, state):
            x = nm.gather(nm.param("embedding", [V, H]), tokens, V) + state
            return nm.einsum([x, nm.param("output", [H, V])], [B, V]), state

        method = Sample(nm.random.key(0), **options)
        return decode(step, nm.zeros([B, H]), first, T, method)["sequences"]

    def plan(**options):
        program = nm.trace(lambda first: write(first, **options), nm.spec([B], "int32"))
        return nm.plan(program, nm.Mesh(tensor=8), "vocab:tensor")

    few, both, sorted_ = plan(top_k=4), plan(top_k=4, top_p=0.9), plan(top_p=0.9)
    assert both.total_wire_bytes() < 1.1 * few.total_wire_bytes() < 1e-2 * 64 * 50264 * 4
    assert not any("sort sends" in one for one in both.decisions)
    (text,) = (one for one in sorted_.decisions if "sort sends" in one)
    assert "9.2 MiB on the wire); nm.top_k sends the largest alone (in Sample, top_k=" in text


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({}, 6),
        ({"top_k": 2}, 2),
        ({"top_p": 0.6}, None),
        ({"top_p": 0.6, "top_k": 5}, None),
        ({"temperature": 0.01}, 1),
        ({"top_k": 1}, 1),
    ],
)
def test_samples_come_as_often_as_the_model_says(options, possible):
    tables = np.repeat(random_tables(4, G=1, T=1, W=6), 2, 0)
    sequences, scores, steps = decoded(tables, 4000, lambda N: Sample(nm.random.key(0), **options))
    probability = np.exp(logits_of(tables[0], ()) / options.get("temperature", 1.0))
    probability /= probability.sum()
    ranked = np.argsort(-probability)
    if possible is None:
        shares = probability[ranked][: options.get("top_k")]
        possible = int(np.searchsorted(np.cumsum(shares / shares.sum()), options["top_p"]) + 1)
    expected = np.where(np.isin(np.arange(6), ranked[:possible]), probability, 0.0)
    expected /= expected.sum()
    share = np.bincount(sequences[:, :, 0].ravel(), minlength=6) / 8000
    assert (share[expected == 0] == 0).all()
    np.testing.assert_allclose(share, expected, atol=5 * np.sqrt(0.25 / 8000))
    np.testing.assert_allclose(
        scores, logits_of(tables[0], ())[sequences[:, :, 0]], rtol=1e-4, atol=1e-5
    )
    assert steps == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"top_k": 9}, "top_k=9"),
        ({"top_p": 1.5}, "top_p=1.5 is not a probability"),
    ],
)
def test_impossible_options_are_errors(options, message):
    with pytest.raises(nm.NamedMeshError, match=message):
        decoded(random_tables(0, 2, 2, 6), 1, lambda N: Sample(nm.random.key(0), **options))
