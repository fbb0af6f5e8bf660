"""The models of a grid: equal FLOPs and tokens, names, seeds, and baselines of one language."""

import pytest

from examples.m4.experiment.grid import BILINGUAL_TRIES, make_grid
from examples.m4.settings import preset
from namedmesh.errors.errors import NamedMeshError

TINY = preset("tiny").but(steps=30)


def grid(**options):
    return {cell.name: cell for cell in make_grid(TINY, **options)}


def test_every_number_of_experts_at_every_depth_and_a_dense_model_of_each():
    cells = grid(experts=[4, 8], depths=[1, 2])
    assert [*cells] == ["dense", "moe4", "moe8", "dense_2x", "moe4_2x", "moe8_2x"]
    assert [cell.settings.model.layers for cell in cells.values()] == [4, 4, 4, 8, 8, 8]
    assert [cell.settings.model.experts for cell in cells.values()] == [0, 4, 8, 0, 4, 8]
    assert {cell.settings.steps for cell in cells.values()} == {30}


def test_a_dense_model_has_the_flops_of_a_mixture():
    from examples.m4.programs import trace_train

    cells = grid(experts=[8], depths=[1])
    flops = {
        name: trace_train(cell.settings.but(capacity_factor=2.0)).flops()
        for name, cell in cells.items()
    }
    assert flops["moe8"] == pytest.approx(flops["dense"], rel=0.12), "but for the router"


def test_further_seeds_are_of_multilingual_models_alone():
    cells = grid(experts=[4], depths=[1], seeds=[3, 5], bilingual=["de"])
    multilingual = [name for name, cell in cells.items() if not cell.language]
    assert multilingual == ["dense", "moe4", "dense_seed5", "moe4_seed5"]
    assert [cells[name].settings.seed for name in multilingual] == [3, 3, 5, 5]
    assert {cell.settings.seed for cell in cells.values() if cell.language} == {3}


def test_baselines_are_dense_models_of_one_language_tried_in_several_ways():
    cells = grid(experts=[4], depths=[1], bilingual=["de", "fr"], bilingual_steps=7)
    tries = [cell for cell in cells.values() if cell.language == "de"]
    assert [cell.attempt for cell in tries] == [*BILINGUAL_TRIES]
    for cell in tries:
        settings = cell.settings
        assert (settings.languages, settings.steps, settings.model.experts) == ("de", 7, 0)
    shapes = [(cell.settings.model.model, cell.settings.model.dropout) for cell in tries]
    assert len({*shapes}) == len(tries)
    assert len([cell for cell in cells.values() if cell.language == "fr"]) == len(tries)


def test_a_preset_without_experts_is_refused():
    with pytest.raises(NamedMeshError, match="'tiny_dense' has no experts"):
        make_grid(preset("tiny_dense"), experts=[4], depths=[1])


def test_baselines_have_rows_of_their_own_that_groups_of_a_mixture_do_not_limit():
    options = {"experts": [], "depths": [], "bilingual_rows": 8, "bilingual_tries": ["narrow"]}
    for code in ("de", "all"):
        (cell,) = make_grid(preset("base"), bilingual=[code], **options)
        assert cell.settings.rows == 8 and cell.settings.model.model == 256
