"""DeepSeek-V3's further predictions, against the paper's equations written out in numpy."""

import numpy as np
import pytest

import namedmesh as nm
from examples.llm.architecture import Architecture
from examples.llm.model import LanguageModel, trace_rows
from examples.llm.settings import Settings

BATCH, LENGTH, HEADS, KEY, LAYERS, FURTHER = 2, 9, 2, 4, 2, 2
ARCHITECTURE = Architecture(
    vocab=11, layers=LAYERS, model=8, hidden=12, heads=HEADS, group=1, key=KEY, tied=False,
    scaled=False, predictions=FURTHER,
)  # fmt: skip
DATA = ("data=2", "batch:data", "model:data")
TENSOR = ("tensor=2", "heads:tensor, hidden:tensor, vocab:tensor, row:tensor", None)


def norm(x, scale):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def rotate(x, positions):
    """Rotate the halves of each head (row, seq, heads, key) by an angle for each position."""
    rates = 10_000.0 ** (-np.arange(KEY // 2) / (KEY // 2))
    angle = positions[:, :, None, None] * rates
    one, two = x[..., : KEY // 2], x[..., KEY // 2 :]
    turned = [one * np.cos(angle) - two * np.sin(angle), two * np.cos(angle) + one * np.sin(angle)]
    return np.concatenate(turned, -1)


def run_layer(h, w, i, positions, allowed):
    """Apply a Llama layer, of weights whose first dimension is the layer."""
    x = norm(h, w["attention/norm_scale"][i])
    q, k, v = (
        (x @ w[f"attention/{name}"][i].reshape(8, -1)).reshape(BATCH, LENGTH, HEADS, KEY)
        for name in ("wq", "wk", "wv")
    )
    q, k = rotate(q, positions), rotate(k, positions)
    scores = np.einsum("bsnk,btnk->bnst", q, k) / np.sqrt(KEY)
    scores = np.where(allowed[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    y = np.einsum("bnst,btnk->bsnk", weights, v).reshape(BATCH, LENGTH, -1)
    h = h + y @ w["attention/wo"][i].reshape(-1, 8)
    x = norm(h, w["network/norm_scale"][i])
    gate = x @ w["network/wi"][i]
    return h + (gate / (1 + np.exp(-gate)) * (x @ w["network/wi_gate"][i])) @ w["network/wo"][i]


def predict(weights, inputs, targets, segments, positions, counts):
    """Return the cross entropy, and the further losses: each the mean over what can be told."""
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    allowed = causal & (segments[:, :, None] == segments[:, None, :])
    h = weights["embedding"][inputs]
    for i in range(LAYERS):
        h = run_layer(h, weights, i, positions, allowed)

    def losses(h, scale, right):
        logits = norm(h, scale) @ weights["output"].T
        logits = logits - logits.max(-1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return -np.take_along_axis(logs, right[..., None], -1)[..., 0]

    share = counts / counts.sum()
    main = (losses(h, weights["final_scale"], targets) * share).sum()
    further = []
    for k in range(FURTHER):
        own = {
            name.removeprefix(f"further{k}/"): one
            for name, one in weights.items()
            if name.startswith(f"further{k}/")
        }
        total, known = 0.0, np.zeros_like(inputs)  # token k + 1 of each, where there is one
        known[:, : LENGTH - k] = targets[:, k:]
        embedded = norm(weights["embedding"][known], own["token_scale"]) @ own["w_token"]
        before = norm(h, own["hidden_scale"]) @ own["w_hidden"]
        h = run_layer(embedded + before, own, 0, positions, allowed)
        for row in range(BATCH):
            for s in range(LENGTH - k - 1):
                if segments[row, s] != segments[row, s + k + 1]:
                    continue
                right = np.full((BATCH, LENGTH), targets[row, s + k + 1])
                one = losses(h, own["final_scale"], right)[row, s]
                total += one * counts[row, s + k + 1] / counts.mean()
        further.append(total / (BATCH * (LENGTH - k - 1)))
    return main, further


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("place", [DATA, TENSOR], ids=["data", "tensor"])
def test_further_losses_are_those_of_the_equations(packed, place):
    mesh, layout, params = place
    settings = Settings(ARCHITECTURE, batch=BATCH, length=LENGTH, mesh=mesh, layout=layout)
    model = LanguageModel(settings)
    program = trace_rows(model, model.loss, packed=packed)
    known = nm.Layout(layout).only(program.dims)
    step = nm.compile(program, mesh=nm.Mesh.parse(mesh), layout=known, params=params, strict=True)
    state = step.init(seed=1)
    weights = {name: np.asarray(state[name], np.float64) for name in program.parameters}
    random = np.random.default_rng(0)
    texts = random.integers(0, 11, (BATCH, LENGTH + 1)).astype(np.int32)
    batch = {"inputs": texts[:, :-1], "targets": texts[:, 1:]}
    segments, counts = np.zeros((BATCH, LENGTH), np.int32), np.ones((BATCH, LENGTH), np.float32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (BATCH, LENGTH))
    if packed:
        segments[:, 5:], counts[0, 3] = 1, 0.0
        counts[1, 6] = 2.0
        positions = np.where(segments == 1, positions - 5, positions).astype(np.int32)
        batch |= {"segments": segments, "positions": positions, "weights": counts}
    _, found = step(state, **batch)
    main, further = predict(
        weights, batch["inputs"], batch["targets"], segments, positions, counts.astype(np.float64)
    )
    assert float(found["cross_entropy"]) == pytest.approx(main, rel=1e-5)
    # The paper's weight, 0.3, over the mean of the depths.
    wanted = main + 0.3 * sum(further) / FURTHER
    assert float(found["loss"]) == pytest.approx(wanted, rel=1e-5)
