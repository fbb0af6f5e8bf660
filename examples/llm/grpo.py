"""GRPO: a model writes several texts after each prompt, and learns from those that are better.

Texts are written by `decode` on the same devices, under a layout of its own. What is drawn does not
depend on layouts, and neither does what is learned.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import namedmesh as nm
from examples.llm import tuning
from examples.llm.adapters import REFERENCE, Adapters, Dims
from examples.llm.model import LanguageModel
from examples.llm.settings import Settings
from examples.llm.training import compile_program
from namedmesh.layers import Adam, Sample, Weights, linear_warmup, use_weights
from namedmesh.runtime import State
from namedmesh.training import share_state

Reward = Callable[[list[int], list[int]], float]  # of a prompt and what was written after it


@dataclass(frozen=True)
class Grpo:
    """How a model learns from what it writes.

    Attributes:
        group: The texts for each prompt, which are compared with each other.
        written: The longest text, in tokens.
        updates: The updates from the same texts; the ratio is clipped from the second on.
        clip: How far the probability of a token may move in one direction, as a share.
        divergence: The weight of the divergence from the reference, the model as it was at first.
        end: The tokens that end a text.
        layout, params: Those of writing; by default those of training, on the same mesh.
    """

    group: int = 8
    written: int = 64
    updates: int = 1
    clip: float = 0.2
    divergence: float = 0.04
    end: tuple[int, ...] | None = None
    layout: str | None = None
    params: str = ""


@dataclass(frozen=True)
class _Frozen(Weights):
    """Weights of a reference model: as they were at first."""

    def make(
        self, name: str, dims: Dims, init: nm.Initializer | None, over: Dims = (), whole: Dims = ()
    ) -> nm.Tensor:
        """Return a weight that is not trained."""
        return nm.param(name, dims, init, whole=whole, trainable=False)


class Learner:
    """The programs of GRPO for one shape of prompts: they write, and they learn.

    Args:
        settings: The model and its training; `batch` prompts of at most `length` tokens.
        options: How it learns.
    """

    def __init__(self, settings: Settings, options: Grpo):
        self.settings, self.options = settings, options
        writing = settings.but(remat="none")
        if options.layout is not None:
            mesh, _ = settings.devices
            place = {"layout": options.layout, "params": options.params}
            writing = writing.but(mesh=str(mesh).removeprefix("Mesh(").removesuffix(")"), **place)
        own = settings.tuning
        self.weights = Adapters(own) if own else Weights()
        self.write = compile_program(self._trace_write(writing), writing)
        self.learn = compile_program(self._trace_learn(), settings)

    def start(self, folder: pathlib.Path) -> State:
        """Read the weights of a folder, those of the reference too."""
        plain = tuning.load_tuned(folder, self.learn, self.settings)
        copies = {f"{REFERENCE}{name}": array for name, array in plain.arrays.items()}
        arrays = {name: copies.get(name, array) for name, array in plain.arrays.items()}
        return self.learn.place(arrays)

    def roll_out(self, state: State, prompts: Sequence[Sequence[int]], seed: int) -> dict[str, Any]:
        """Write texts after prompts.

        Returns:
            `sequences` and the `log_probabilities` of their tokens, and the rows that prompts take:
            `prompt`, `last` and `padding`.
        """
        length, rows = (
            self.settings.length,
            np.zeros([len(prompts), self.settings.length], np.int32),
        )
        for row, prompt in zip(rows, prompts, strict=True):
            if not 2 <= len(prompt) <= length:
                raise nm.NamedMeshError(
                    f"a prompt of {len(prompt)} tokens", fix=f"give prompts of 2 to {length} tokens"
                )
            row[length - len(prompt) :] = prompt
        padding = np.array([length - len(prompt) for prompt in prompts], np.int32)
        inputs = {"prompt": rows[:, :-1], "last": rows[:, -1], "padding": padding}
        _, drawn = self.write(share_state(state, self.write), **inputs, seed=np.int32(seed))
        return {**inputs, **{name: np.asarray(one) for name, one in drawn.items()}}

    def make_batch(self, drawn: dict[str, Any], rewards: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of an update: a row for each text, and its advantage in its group."""
        texts = drawn["sequences"]  # prompt, text of the group, token
        prompts = np.concatenate([drawn["prompt"], drawn["last"][:, None]], axis=1)
        rows = np.concatenate([np.repeat(prompts[:, None], texts.shape[1], 1), texts], axis=2)
        rows = rows.reshape(-1, rows.shape[-1])
        blank = np.zeros([len(rows), prompts.shape[1] - 1], np.float32)
        counted = self.count_tokens(texts).reshape(-1)[:, None] > np.arange(texts.shape[2])
        flat = drawn["log_probabilities"].reshape(len(rows), -1)
        spread = rewards.std(axis=1, keepdims=True)
        advantage = (rewards - rewards.mean(axis=1, keepdims=True)) / (spread + 1e-4)
        return {
            "inputs": rows[:, :-1],
            "targets": rows[:, 1:],
            "padding": np.repeat(drawn["padding"], texts.shape[1]),
            "weights": np.concatenate([blank, counted.astype(np.float32)], axis=1),
            "before": np.concatenate([blank, flat.astype(np.float32)], axis=1),
            "advantage": advantage.reshape(-1).astype(np.float32),
        }

    def count_tokens(self, texts: np.ndarray) -> np.ndarray:
        """Return how many tokens of each text count: up to the end token, which does."""
        ends = np.isin(texts, self.options.end or ())
        return np.where(ends.any(-1), ends.argmax(-1) + 1, texts.shape[-1])

    def _trace_write(self, settings: Settings) -> nm.Program:
        """Trace the program that writes."""
        options, model = self.options, LanguageModel(settings)
        P, N, T = nm.dims(
            f"prompt={settings.length - 1} hypothesis={options.group} step={options.written}"
        )

        def write(
            prompt: nm.Tensor, last: nm.Tensor, padding: nm.Tensor, seed: nm.Tensor
        ) -> dict[str, nm.Tensor]:
            method, last = Sample(nm.random.key_from_seed(seed)), nm.broadcast(last, [model.B, N])
            drawn = model.write_on(
                prompt, last, [model.B, N], T, method, padding=padding, end=options.end
            )
            names = ("sequences", "log_probabilities")
            return {name: nm.transpose(drawn[name], [model.B, N, T]) for name in names}

        specs = {"prompt": nm.spec([model.B, P], "int32"), "last": nm.spec([model.B], "int32")}
        specs |= {"padding": nm.spec([model.B], "int32"), "seed": nm.spec([], "int32")}
        with use_weights(self.weights):
            return nm.trace(write, **specs)

    def _trace_learn(self) -> nm.Program:
        """Trace the program that learns from texts."""
        s, options = self.settings, self.options
        rows, size = s.batch * options.group, s.length - 1 + options.written
        model = LanguageModel(s.but(batch=rows, length=size))

        def score(
            weights: Weights, inputs: nm.Tensor, targets: nm.Tensor, padding: nm.Tensor
        ) -> Any:
            with use_weights(weights):
                logits, aux = model.logits(inputs, padding)
            hot = nm.one_hot(targets, model.V)
            return nm.sum(nm.log_softmax(nm.cast(logits, "float32"), over=model.V) * hot,
                          over=model.V), aux  # fmt: skip

        def learn(
            inputs: nm.Tensor, targets: nm.Tensor, padding: nm.Tensor, weights: nm.Tensor,
            before: nm.Tensor, advantage: nm.Tensor,
        ) -> dict[str, nm.Tensor]:  # fmt: skip
            new, aux = score(self.weights, inputs, targets, padding)
            if s.tuning is not None:
                old, _ = score(dataclasses.replace(Adapters(s.tuning), off=True), inputs, targets,
                               padding)  # fmt: skip
            else:
                with nm.scope("reference"):
                    old, _ = score(_Frozen(), inputs, targets, padding)
            mean = lambda values: nm.sum(values * weights) / nm.maximum(nm.sum(weights), 1.0)
            ratio = nm.exp(new - before)
            clipped = nm.clip(ratio, 1.0 - options.clip, 1.0 + options.clip)
            gain = nm.minimum(ratio * advantage, clipped * advantage)
            apart = nm.stop_gradient(old) - new
            divergence = nm.exp(apart) - apart - 1.0  # never negative, and its mean is KL
            loss = -mean(gain) + mean(divergence) * options.divergence + aux
            moved = nm.cast(nm.absolute(ratio - 1.0) > options.clip, "float32")
            results = {"loss": loss, "divergence": mean(divergence), "clipped": mean(moved)}
            rate = linear_warmup(s.learning_rate, steps=s.warmup)
            return {**results, **Adam(rate, beta2=0.98, clip_norm=1.0).apply(nm.grad(loss))}

        tokens, row = nm.spec([model.B, model.S], "int32"), nm.spec([model.B])
        floats = nm.spec([model.B, model.S])
        return nm.trace(
            learn, inputs=tokens, targets=tokens, padding=nm.spec([model.B], "int32"),
            weights=floats, before=floats, advantage=row,
        )  # fmt: skip


def learn(
    learner: Learner, state: State, prompts: Sequence[Sequence[int]], reward: Reward
) -> Iterator[tuple[State, dict[str, Any]]]:
    """Write, compare and learn, step by step; yield the state and what to log after each."""
    s, options = learner.settings, learner.options
    for number in range(s.steps):
        random = np.random.default_rng([s.seed, number])
        chosen = [prompts[i] for i in random.integers(0, len(prompts), s.batch)]
        drawn = learner.roll_out(state, chosen, s.seed * s.steps + number)
        texts, counts = drawn["sequences"], learner.count_tokens(drawn["sequences"])
        rewards = np.array([
            [reward(list(prompt), text[:count].tolist())
             for text, count in zip(group, sizes, strict=True)]
            for prompt, group, sizes in zip(chosen, texts, counts, strict=True)
        ])  # fmt: skip
        batch, results = learner.make_batch(drawn, rewards), {}
        for _ in range(options.updates):
            state, results = learner.learn(state, **batch)
        row = {name: float(results[name]) for name in ("loss", "divergence", "clipped")}
        yield state, {"reward": float(rewards.mean()), **row, "texts": texts}


def train(
    source: pathlib.Path,
    target: pathlib.Path,
    settings: Settings,
    options: Grpo,
    prompts: Sequence[Sequence[int]],
    reward: Reward,
    say: Callable[[str], None] = print,
) -> None:
    """Train a model of a folder by GRPO, and write it to another folder."""
    learner = Learner(settings, options)
    say(f"writing: {learner.write.plan.mesh}, {learner.write.audit}")
    say(f"learning: {learner.learn.audit}")
    state, number = learner.start(source), 0
    for after, row in learn(learner, state, prompts, reward):
        state, number = after, number + 1
        numbers = ", ".join(f"{name} {row[name]:.4f}" for name in row if name != "texts")
        say(f"step {number}/{settings.steps}: {numbers}")
    tuning.save_tuned(source, target, state, settings)
