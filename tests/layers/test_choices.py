"""Which experts tokens are sent to: the choices that NumPy's model makes, padding apart."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import batch_of
from tests.layers.numpy_transformer import Model, softmax
from tests.layers.small_model import SHORT, SMALL, examples, model_of, weights


class Watched(Model):
    """The NumPy model, which remembers the two best experts of each token of each mixture."""

    def experts(self, weights, x, real, place):
        best = np.argsort(-softmax(x @ weights["wg"]), -1, kind="stable")[:, : self.config.k]
        self.chosen.setdefault(place, []).append((best, real))
        return super().experts(weights, x, real, place)


@pytest.mark.parametrize(
    "changes",
    [{}, {"layers": 8}, {"expert_sides": "encoder"}, {"group_tokens": 6}, {"k": 3}],
    ids=str,
)
def test_choices_are_those_of_numpy(changes):
    chosen = SMALL.but(capacity_factor=6.0, **changes)
    model, batch = model_of(chosen), examples()
    program = nm.trace(lambda batch: model.choices(batch_of(batch)), batch=model.specs())
    state = weights(program)
    found = {name: np.asarray(value) for name, value in program.evaluate(state, **batch)[1].items()}
    wanted = Watched(chosen, state)
    wanted.chosen = {}
    wanted.loss(batch)
    assert {name.split("_")[0] for name in found} == {place[0] for place in wanted.chosen}
    for (side, layer), rows in wanted.chosen.items():
        assert len(rows) == 3
        for row, (best, real) in enumerate(rows):
            here = found[f"{side}_expert"][layer, row]
            np.testing.assert_array_equal(here[real], best[real])
            weight = found[f"{side}_weight"][layer, row]
            np.testing.assert_allclose(weight[real].sum(-1), 1.0, rtol=1e-5)
            np.testing.assert_array_equal(weight[~real], 0.0)


def test_a_choice_without_a_place_has_no_weight():
    model, batch = model_of(SHORT), examples()
    program = nm.trace(lambda batch: model.choices(batch_of(batch)), batch=model.specs())
    found = program.evaluate(weights(program), **batch)[1]
    real = batch["source_segments"] > 0
    assert (np.asarray(found["encoder_weight"])[:, real] == 0).any()


def test_experts_that_choose_tokens_tell_no_choices():
    model = model_of(SMALL.but(router="expert_choice"))
    program = nm.trace(lambda batch: model.choices(batch_of(batch)), batch=model.specs())
    names = {*program.evaluate(weights(program), **examples())[1]}
    assert names == {"decoder_expert", "decoder_weight"}
