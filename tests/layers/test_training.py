"""The model learns to copy and to reverse: what it then decodes is checked against the task."""

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.layers import (
    Adam,
    Config,
    Decoder,
    Transformer,
    batch_of,
    cosine_decay,
    linear_warmup,
)

END, COPY, REVERSE, FIRST, VOCAB = 1, 2, 3, 4, 20
LONGEST, PACKED, STEPS = 6, 4, 400
MODELS = {
    "experts": Config(
        layers=4, experts=4, model=64, hidden=128, heads=4, key=16, source_vocab=VOCAB,
        target_vocab=VOCAB, dropout=0.01,
        smoothing=0.0, remat="none",
    ),
}  # fmt: skip
MODELS["dense"] = MODELS["experts"].but(experts=0)
LAYOUTS = {
    "one axis": ("all=8", "group:all, expert:all"),
    "two axes": ("data=2 model=2", "group:data, expert:data, heads:model, hidden:model"),
}


def model_of(config: Config, rows: int, packed: int) -> Transformer:
    """Pack examples: an instruction, tokens and an end as source; tokens and an end as target."""
    return Transformer(
        config, group=rows, source=packed * (LONGEST + 2), target=packed * (LONGEST + 1)
    )


def examples(rng: np.random.Generator, model: Transformer) -> dict[str, np.ndarray]:
    """Fresh packed examples of random lengths, padding last."""
    sizes = {"source": model.S.size, "target": model.T.size}
    batch = {
        name: np.zeros((model.G.size, sizes[name.split("_")[0]]), np.int32)
        for name in model.specs()
    }
    for row in range(model.G.size):
        start = dict.fromkeys(sizes, 0)
        for segment in range(1, model.S.size // (LONGEST + 2) + 1):
            tokens = rng.integers(FIRST, VOCAB, size=rng.integers(2, LONGEST + 1)).tolist()
            task = int(rng.choice([COPY, REVERSE]))
            sides = {
                "source": [task, *tokens, END],
                "target": [*(tokens if task == COPY else tokens[::-1]), END],
            }
            for side, made in sides.items():
                place = slice(start[side], start[side] + len(made))
                for what, values in (
                    ("", made),
                    ("_segments", segment),
                    ("_positions", range(len(made))),
                ):
                    batch[f"{side}{what}"][row, place] = values
                start[side] = place.stop
    return batch


def train_program(model: Transformer) -> nm.Program:
    rate = linear_warmup(cosine_decay(4e-3, steps=STEPS), steps=40)

    def step(batch, seed):
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        Adam(learning_rate=rate, beta2=0.98, clip_norm=1.0).apply(nm.grad(loss))
        return metrics

    return nm.trace(step, batch=model.specs(), seed=nm.spec([], "int32"))


def trained(
    model: Transformer, mesh: str, layout: str
) -> tuple[dict[str, np.ndarray], list[float]]:
    """The parameters after training, and the loss of every step."""
    program, rng, losses = train_program(model), np.random.default_rng(0), []
    step = nm.compile(
        program, mesh=nm.Mesh.parse(mesh), layout=nm.Layout(layout).only(program.dims), strict=True
    )
    state = step.init(0)
    for i in range(STEPS):
        state, metrics = step(state, **examples(rng, model), seed=np.int32(i))
        losses.append(float(metrics["loss"]))
    return {name: np.asarray(state[name]) for name in program.parameters}, losses


def decoded(
    model: Transformer,
    mesh: str,
    layout: str,
    state: dict[str, np.ndarray],
    batch: dict[str, np.ndarray],
) -> np.ndarray:
    """What the model says of each row's source, token by token."""
    spec = nm.spec([model.G, model.S], "int32")
    program = nm.trace(
        lambda source, segments: Decoder(model, source, segments, end=END).decode(),
        source=spec,
        segments=spec,
    )
    step = nm.compile(
        program, mesh=nm.Mesh.parse(mesh), layout=nm.Layout(layout).only(program.dims), strict=True
    )
    placed = step.place({name: state[name] for name in program.variables})
    return np.asarray(step(placed, batch["source"], batch["source_segments"])[1]["sequences"])[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", MODELS)
def test_copying_and_reversing_are_learned(kind, layout):
    config, (mesh, text) = MODELS[kind], LAYOUTS[layout]
    model = model_of(config, rows=32, packed=PACKED)
    state, losses = trained(model, mesh, text)

    rng = np.random.default_rng(1)
    evaluation = nm.trace(
        lambda batch: model.loss(batch_of(batch))[1]["accuracy"], batch=model.specs()
    )
    forced = float(evaluation.evaluate(state, **examples(rng, model))[1])

    single = model_of(
        config.but(capacity_factor=4.0), rows=128, packed=1
    )  # room for every token of a short row
    batch = examples(rng, single)
    real = batch["target_segments"] > 0
    free = float((decoded(single, mesh, text, state, batch) == batch["target"])[real].mean())

    print(
        f"{kind}, {layout}: loss {losses[0]:.2f} to {losses[-1]:.4f}, "
        f"teacher-forced {forced:.4f}, decoded {free:.4f}"
    )
    assert forced > 0.99, losses[::25]
    assert free > 0.99, losses[::25]
