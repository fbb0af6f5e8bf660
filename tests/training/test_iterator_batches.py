"""The position of any iterator with a state is part of a checkpoint, and exact."""

import json

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.training import Checkpoints, Intervals, IteratorBatches, Trainer

B, M = nm.dims("batch=8 model=4")


class Shuffled:
    """Batches in an order that depends on all before: a buffer, as real loaders have one."""

    def __init__(self):
        self.random, self.buffer, self.number = np.random.default_rng(3), [], 0

    def __iter__(self):
        return self

    def __next__(self):
        while len(self.buffer) < 5:
            self.buffer.append(self.number)
            self.number += 1
        chosen = self.buffer.pop(int(self.random.integers(5)))
        return {"x": np.full((8, 4), chosen, np.float32)}

    def read(self):
        return {
            "random": self.random.bit_generator.state,
            "buffer": list(self.buffer),
            "number": self.number,
        }

    def write(self, state):
        self.random.bit_generator.state = state["random"]
        self.buffer, self.number = list(state["buffer"]), state["number"]


class LikeGrain(Shuffled):
    def get_state(self):
        return json.dumps(self.read()).encode()

    def set_state(self, state):
        self.write(json.loads(state))


class LikeTorch(Shuffled):
    def state_dict(self):
        return self.read()

    def load_state_dict(self, state):
        self.write(state)


def of_tf_data():
    import tensorflow as tf

    data = tf.data.Dataset.range(1000).shuffle(50, seed=7).repeat()
    return iter(data.map(lambda n: {"x": tf.fill([8, 4], tf.cast(n, tf.float32))}))


KINDS = {"grain": LikeGrain, "torch": LikeTorch, "tf.data": of_tf_data}


def order(items):
    return [int(np.asarray(batch["x"])[0, 0]) for batch, _ in items]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, 6])
def test_an_iterator_goes_on_where_it_was(kind, cut):
    stream = IteratorBatches(KINDS[kind])
    whole = stream.read_from(None)
    expected = order(next(whole) for _ in range(15))
    again = stream.read_from(None)
    items = [next(again) for _ in range(cut)]
    position = json.loads(json.dumps(items[-1][1]))  # as a checkpoint has it
    rest = stream.read_from(position)
    assert order(items) + order(next(rest) for _ in range(15 - cut)) == expected
    assert len(set(expected)) > 10


def train(x):
    seen = nm.state("seen", [], dtype="float32")
    nm.assign(seen, seen * 0.5 + nm.mean(x))
    return {"loss": nm.mean(x)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_cut_ends_like_one_that_was_not(kind, tmp_path):
    states = []
    for name, stops, meshes in (("whole", (12,), (4,)), ("cut", (5, 12), (4, 2))):
        for steps, devices in zip(stops, meshes, strict=True):
            step = nm.compile(
                train, x=nm.spec([B, M]), mesh=nm.Mesh(data=devices), layout="batch:data"
            )
            feed = lambda batch, _: {"x": np.asarray(batch["x"])}
            with Checkpoints(tmp_path / name, keep=2) as saved:
                trainer = Trainer(
                    step, IteratorBatches(KINDS[kind], "order"), Intervals(steps),
                    checkpoints=saved, feed=feed, say=lambda _: None,
                )  # fmt: skip
                trainer.run()
        states.append(float(np.asarray(trainer.state["seen"])))
    assert states[0] == states[1]


def test_an_iterator_without_a_state_is_refused():
    with pytest.raises(nm.NamedMeshError, match="does not tell its state"):
        next(IteratorBatches(lambda: iter([1])).read_from(None))
