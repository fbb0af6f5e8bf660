"""The paper's Transformer: a plan of the 600-billion-weight model, then a tiny one trained.

The tiny model of the same text learns to copy its input, and beam search decodes it.
"""

import numpy as np

import namedmesh as nm
from namedmesh.layers import Adafactor, Beam, Decoder, Transformer, batch_of, config

LAYOUT = "group:all, expert:all"


def train_program(model):
    def train_step(batch, seed):
        loss, metrics = model.loss(batch_of(batch), nm.random.key_from_seed(seed))
        Adafactor(unfactored=[model.E]).apply(nm.grad(loss))
        return metrics["loss"]

    return nm.trace(train_step, batch=model.specs(), seed=nm.spec([], "int32"))


def translate_program(model):
    def translate(source, segments):
        decoder = Decoder(model, source, segments, hypotheses=4, flat=True)
        return decoder.decode(Beam(decoder.N))

    spec = nm.spec([model.G, model.S], "int32")
    return nm.trace(translate, source=spec, segments=spec)


def plan_large():
    """Plan the 600-billion-weight step of the paper for 2,048 devices."""
    large = Transformer(config("moe_2048e_36l"), group=2048, source=1024, target=1024)
    plan = nm.plan(train_program(large), nm.Mesh(all=2048), LAYOUT)
    weights = sum(variable.shape.elements for variable in plan.program.parameters.values())
    exchanges = plan.count("AllToAll")
    print(f"{weights / 1e9:.0f} billion weights, {exchanges} AllToAlls a step, planned in seconds")


def train_small():
    """Train a small model to copy sentences, then translate with it."""
    small = config("tiny").but(dropout=0.0, capacity_factor=8.0)
    model = Transformer(small, group=8, source=8, target=8)
    tokens = np.random.default_rng(0).integers(2, 64, size=(8, 8)).astype(np.int32)
    tokens[:, -1] = 1  # the end of a sentence
    segments, positions = np.ones_like(tokens), np.tile(np.arange(8, dtype=np.int32), (8, 1))
    arrays = {"": tokens, "_segments": segments, "_positions": positions}
    batch = {f"{side}{name}": arrays[name] for side in ("source", "target") for name in arrays}
    step = nm.compile(train_program(model), mesh=nm.Mesh(all=4), layout=LAYOUT)
    state = step.init(seed=0)
    for i in range(200):
        state, loss = step(state, **batch, seed=i)
        if i % 50 == 49:
            print(f"step {i + 1}: loss {loss:.2f}")

    decode = nm.compile(translate_program(model), mesh=nm.Mesh(all=4), layout=LAYOUT)
    learned = decode.place({name: state[name] for name in decode.variables})
    _, best = decode(learned, source=tokens, segments=segments)
    copied = (np.asarray(best["sequences"])[:, 0] == tokens).mean()
    print(f"copied {copied:.0%} of the tokens in {best['steps']} steps of flat beam search")


if __name__ == "__main__":
    plan_large()
    train_small()
