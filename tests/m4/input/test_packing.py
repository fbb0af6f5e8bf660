import numpy as np
import pytest

from examples.m4.input.packing import assemble, fits_in_row, pack
from examples.m4.input.tokens import Ragged
from namedmesh.errors.errors import NamedMeshError
from tests.m4.input.unpacking import unpacked


def sequences(lengths, seed: int) -> Ragged:
    draw = np.random.default_rng(seed)
    return Ragged.of([draw.integers(3, 1000, length) for length in lengths])


def realistic(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths like those of sentences: log-normal, sources a third longer, ratios that vary."""
    draw = np.random.default_rng(seed)
    target = 3 + draw.lognormal(3.2, 0.5, count).astype(int)
    source = 2 + (target * 4 / 3 * draw.lognormal(0, 0.25, count)).astype(int)
    return source, target


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("source", "target", "most"), [(64, 48, None), (100, 30, 3), (40, 40, 1)])
def test_unpacking_gives_back_every_example_once(seed, source, target, most):
    lengths = realistic(500, seed)
    fits = fits_in_row(*lengths, source, target)
    sides = sequences(lengths[0][fits], seed), sequences(lengths[1][fits], seed + 100)
    packed = pack(sides[0].lengths, sides[1].lengths, source, target, most=most)
    arrays = assemble("source", sides[0], packed.rows, source) | assemble(
        "target", sides[1], packed.rows, target
    )
    back = []
    for sources, targets in zip(
        unpacked(arrays, "source"), unpacked(arrays, "target"), strict=True
    ):
        assert len(sources) <= (most or 500)
        back += zip(sources, targets, strict=True)
    assert sorted(back) == sorted(
        (tuple(sides[0][index]), tuple(sides[1][index])) for index in range(len(sides[0]))
    )
    for name, array in arrays.items():
        assert array.dtype == np.int32 and array.shape == (
            len(packed),
            source if name.startswith("source") else target,
        )
    assert packed.source_fill == pytest.approx((arrays["source_segments"] > 0).mean())
    assert packed.target_fill == pytest.approx((arrays["target_segments"] > 0).mean())


@pytest.mark.parametrize(("source", "target"), [(128, 96), (256, 192)])
def test_rows_are_nearly_full(source, target):
    lengths = realistic(4000, 0)
    fits = fits_in_row(*lengths, source, target)
    packed = pack(lengths[0][fits], lengths[1][fits], source, target)
    assert packed.source_fill > 0.92 and packed.target_fill > 0.92


def test_fitting_is_of_both_sides():
    assert fits_in_row(np.array([4, 5, 4]), np.array([3, 3, 4]), 4, 3).tolist() == [
        True,
        False,
        False,
    ]


def test_an_example_that_fits_in_no_row_is_an_error():
    with pytest.raises(
        NamedMeshError, match="an example of 9 source and 2 target tokens fits in no row of 8 and 8"
    ):
        pack(np.array([3, 9]), np.array([4, 2]), 8, 8)


def test_nothing_packs_into_no_row():
    packed = pack(np.zeros(0, np.int64), np.zeros(0, np.int64), 8, 8)
    assert len(packed) == 0 and packed.source_fill == 0


def test_rows_may_be_empty_and_what_is_too_long_is_cut():
    rows = [np.zeros(0, np.int64), np.array([1, 0, 2]), np.zeros(0, np.int64)]
    arrays = assemble("source", Ragged.of([[5, 6, 7], [8, 9], [10]]), rows, 4)
    assert arrays["source"].tolist() == [[0] * 4, [8, 9, 5, 6], [0] * 4]
    assert arrays["source_segments"].tolist()[1] == [1, 1, 2, 2]
    assert arrays["source_positions"].tolist()[1] == [0, 1, 0, 1]
