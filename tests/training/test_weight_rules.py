"""Weights in files of other libraries: stacked, transposed, fused; in folders; under layouts."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import namedmesh as nm

L, N, K, M = nm.dims("layer=3 heads=4 key=2 model=6")
RULES = {
    "wq": nm.WeightRule("layers.{layer+1}.qv.weight", "(heads key+5) model"),
    "wv": nm.WeightRule("layers.{layer+1}.qv.weight", "(heads 2+value) model"),
    "table": nm.WeightRule("table", "model heads"),
}
W = nm.Dimension("value", 5)


def use(x: nm.Tensor) -> nm.Tensor:
    wq, wv = nm.param("wq", [L, M, N, K]), nm.param("wv", [L, M, N, W])
    table = nm.param("table", [N, M])
    total = nm.einsum([x, wq], [L, N, K]), nm.einsum([x, wv], [L, N, W])
    return nm.sum(total[0]) + nm.sum(total[1]) + nm.sum(table)


def tensors() -> dict[str, np.ndarray]:
    """As another library has them: each head's rows of queries, then of values."""
    random = np.random.default_rng(0)
    layers = {f"layers.{i}.qv.weight": random.normal(size=(28, 6)) for i in (1, 2, 3)}
    table = {"table": random.normal(size=(6, 4))}
    return {name: value.astype(np.float32) for name, value in (layers | table).items()}


def expected() -> dict[str, np.ndarray]:
    """The same, cut by hand."""
    ours: dict[str, np.ndarray] = {"wq": np.zeros((3, 6, 4, 2)), "wv": np.zeros((3, 6, 4, 5))}
    for i in range(3):
        for head in range(4):
            rows = tensors()[f"layers.{i + 1}.qv.weight"][head * 7 : head * 7 + 7]
            ours["wq"][i, :, head], ours["wv"][i, :, head] = rows[:2].T, rows[2:].T
    return {**ours, "table": tensors()["table"].T}


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("one=1", ""),
        ("a=2", "heads:a"),
        ("a=2, b=4", "layer:a, model:b"),
        ("a=3", "key:a, value:a"),
    ],
)
def test_every_shard_is_read_by_its_rule_and_written_back(mesh, layout, tmp_path):
    items = list(tensors().items())
    save_file(dict(items[:2]), tmp_path / "model-00001-of-00002.safetensors")
    save_file(dict(items[2:]), tmp_path / "model-00002-of-00002.safetensors")
    step = nm.compile(use, nm.spec([M]), mesh=nm.Mesh.parse(mesh), layout=layout)
    state = nm.load_weights(tmp_path, step, RULES)
    for name, value in expected().items():
        np.testing.assert_array_equal(state.fetch(name), value.astype(np.float32))
    nm.save_weights(tmp_path / "back", state, RULES, largest=1400)
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert len({*index["weight_map"].values()}) == 2
    assert index["metadata"]["total_size"] == sum(one.nbytes for one in tensors().values())
    for name, value in tensors().items():
        written = load_file(tmp_path / "back" / index["weight_map"][name])[name]
        np.testing.assert_array_equal(written, value)


def test_mistakes_name_variables_and_tensors(tmp_path):
    step = nm.compile(use, nm.spec([M]), mesh=nm.Mesh(one=1))
    some = {name: value for name, value in tensors().items() if "2" not in name}
    save_file(some, tmp_path / "model.safetensors")
    with pytest.raises(nm.NamedMeshError, match=r"layers\.2\.qv\.weight\): .* is missing"):
        nm.load_weights(tmp_path, step, RULES)
    with pytest.raises(nm.NamedMeshError, match="wq: 2 of 3"):
        nm.load_weights(tmp_path, step, RULES, missing="init")
    with pytest.raises(nm.NamedMeshError, match="does not fit its dimensions"):
        nm.load_weights(tmp_path, step, RULES | {"table": nm.WeightRule("table", "model")})
    with pytest.raises(nm.NamedMeshError, match="has 48 elements by the rules"):
        nm.save_weights(tmp_path / "out", step.init(), RULES | {"wv": None}, largest=2**20)
    with pytest.raises(nm.NamedMeshError, match="cannot be read"):
        nm.load_weights(tmp_path, step, RULES | {"table": nm.WeightRule("table", "model *")})
