"""The model in plain NumPy, row by row and token by token, for evaluation (nothing random)."""

import math
from typing import Any

import numpy as np

from namedmesh.layers import Config
from tests.layers.algorithm1 import softmax

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "swish": lambda x: x / (1 + np.exp(-x)),
}


class Weights:
    """Parameters under a prefix, one layer's where a layer is said."""

    def __init__(self, state: dict[str, np.ndarray], prefix: str, layer: int | None = None):
        self.state, self.prefix, self.layer = state, prefix, layer

    def under(self, name: str, layer: int | None = None) -> "Weights":
        return Weights(self.state, f"{self.prefix}{name}/", self.layer if layer is None else layer)

    def __getitem__(self, name: str) -> np.ndarray:
        value = self.state[f"{self.prefix}{name}"].astype(np.float64)
        return value if self.layer is None else value[self.layer]


class Model:
    """One configuration; losses are added up as layers run."""

    def __init__(self, config: Config, state: dict[str, np.ndarray]):
        self.config, self.root = config, Weights(state, "")

    def loss(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """The mean loss of the real target tokens, and with it the experts' losses."""
        aux, z, each, right = [], [], [], []
        for row in range(len(batch["source"])):
            one = {name: array[row] for name, array in batch.items()}
            scores, balance, peaks = self.row(one)
            aux.append(balance)
            z.append(peaks)
            real = one["target_segments"] > 0
            each += self.cross_entropy(scores[real], one["target"][real]).tolist()
            right += (scores[real].argmax(-1) == one["target"][real]).tolist()
        metrics = {"cross_entropy": float(np.mean(each)), "accuracy": float(np.mean(right))}
        if not self.config.experts:
            return {"loss": metrics["cross_entropy"], **metrics}
        balance = sum(
            float(np.mean([one[place] for one in aux if place in one]))
            for place in {*aux[0]}.union(*aux)
        )
        balance *= self.config.experts**2  # one for each layer whose load is even
        peak = sum(float(np.mean(np.concatenate([one[place] for one in z]))) for place in z[0])
        experts = self.config.aux_weight * balance + self.config.z_weight * peak
        return {"loss": metrics["cross_entropy"] + experts, "aux_loss": balance, **metrics}

    def cross_entropy(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        words, share = scores.shape[-1], self.config.smoothing
        wanted = np.full(scores.shape, share / (words - 1))
        wanted[np.arange(len(targets)), targets] = 1 - share
        entropy = -np.where(wanted > 0, wanted * np.log(np.where(wanted > 0, wanted, 1)), 0).sum(-1)
        return -(wanted * np.log(softmax(scores))).sum(-1) - entropy

    def row(self, one: dict[str, np.ndarray]):
        """Score one row's target tokens; also each mixture's balance and its logits' peaks."""
        self.balance, self.peaks = {}, {}
        source, target = one["source_segments"], one["target_segments"]
        encoded = self.side("encoder", one["source"], one["source_positions"], source)
        previous = np.where(
            one["target_positions"] == 0, 0, np.concatenate([[0], one["target"][:-1]])
        )
        decoded = self.side("decoder", previous, one["target_positions"], target, encoded, source)
        table = self.root.under("decoder")["embedding" if self.config.tied else "projection"]
        return decoded @ table.T, self.balance, self.peaks

    def side(self, name, tokens, positions, segments, encoded=None, memory_segments=None):
        config, weights, count = self.config, self.root.under(name), len(tokens)
        x = weights["embedding"][tokens] * math.sqrt(config.model)
        if config.positions == "sinusoids":
            half = config.model // 2
            angles = positions[:, None] * 10_000.0 ** (-np.arange(half) / (half - 1))
            x = x + np.concatenate([np.sin(angles), np.cos(angles)], -1)
        if config.positions == "learned":
            x = x + weights["positions"][positions]
        mask = (segments[:, None] == segments) & (segments != 0)
        mask &= np.ones_like(mask) if encoded is None else np.tri(count, dtype=bool)
        bias = (
            self.bias(weights, count, both_ways=encoded is None)
            if config.positions == "relative"
            else 0.0
        )
        experts = config.experts and config.expert_sides in ("both", name)
        for layer in range(config.layers // (4 if experts else 2)):
            for kind in ("dense", "experts") if experts else ("dense",):
                own = weights.under(kind, layer)
                x = self.residual(
                    own, "attention", x, lambda w, h: self.attention(w, h, h, mask, bias)
                )
                if encoded is not None:
                    across = (segments[:, None] == memory_segments) & (memory_segments != 0)
                    x = self.residual(
                        own,
                        "cross",
                        x,
                        lambda w, h, m=across: self.attention(w, h, encoded, m, 0.0),
                    )
                if kind == "dense":
                    x = self.residual(own, "ffn", x, self.network)
                else:
                    place = (name, layer)
                    x = self.residual(
                        own, "moe", x, lambda w, h, p=place: self.experts(w, h, segments > 0, p)
                    )
        return self.norm(weights, "final", x) if config.norm == "pre" else x

    def norm(self, weights, name, x):
        centred = x - x.mean(-1, keepdims=True) if self.config.normalizer == "layer" else x
        unit = (
            centred
            / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
            * weights[f"{name}_scale"]
        )
        return unit + weights[f"{name}_bias"] if self.config.normalizer == "layer" else unit

    def residual(self, weights, name, x, sublayer):
        weights = weights.under(name)
        if self.config.norm == "pre":
            return x + sublayer(weights, self.norm(weights, "norm", x))
        return self.norm(weights, "norm", x + sublayer(weights, x))

    def attention(self, weights, x, memory, mask, bias):
        q, k, v = (
            np.einsum("sm,mnk->snk", of, weights[name])
            for of, name in ((x, "wq"), (memory, "wk"), (memory, "wv"))
        )
        scores = np.einsum("snk,tnk->nst", q, k) / math.sqrt(self.config.key) + bias
        context = np.einsum("nst,tnk->snk", softmax(np.where(mask, scores, -1e9)), v)
        return np.einsum("snk,nkm->sm", context, weights["wo"])

    def bias(self, weights, count, both_ways):
        table, made = weights["relative_bias"], np.zeros((self.config.heads, count, count))
        half = 16 if both_ways else 32
        for i in range(count):
            for j in range(count):
                distance = abs(j - i) if both_ways else max(i - j, 0)
                far = half // 2 + int(
                    math.log(max(distance, 1) / (half // 2))
                    / math.log(128 / (half // 2))
                    * (half // 2)
                    + 1e-6
                )
                near = distance if distance < half // 2 else min(far, half - 1)
                made[:, i, j] = table[near + (half if both_ways and j > i else 0)]
        return made

    def network(self, weights, x, expert: Any = ...):
        h = ACTIVATIONS[self.config.activation](x @ weights["wi"][expert])
        return (h * (x @ weights["wi_gate"][expert]) if self.config.gated else h) @ weights["wo"][
            expert
        ]

    def experts(self, weights, x, real, place):
        config = self.config
        logits = x @ weights["wg"]
        gates = softmax(logits)
        capacity = max(1, int(config.capacity_factor * len(x) / config.experts))
        self.peaks[place] = np.log(np.exp(logits[real]).sum(-1)) ** 2
        made = np.zeros_like(x)
        if config.router == "expert_choice" and place[0] == "encoder":
            for expert in range(config.experts):
                wanted = sorted(np.flatnonzero(real), key=lambda token: -gates[token, expert])[
                    :capacity
                ]
                for token in wanted:
                    made[token] += gates[token, expert] * self.network(weights, x[token], expert)
            return made
        preferred = gates + weights["balance"] if config.balance == "bias" else gates
        choices = np.argsort(-preferred, -1, kind="stable")[:, : config.k]
        first = np.bincount(choices[real, 0], minlength=config.experts)
        if real.any():
            self.balance[place] = np.mean(first / real.sum() * gates[real].mean(0))
        taken, served = np.zeros(config.experts, int), np.zeros(choices.shape, bool)
        for choice in range(config.k):
            for token in np.flatnonzero(real):
                served[token, choice] = taken[choices[token, choice]] < capacity
                taken[choices[token, choice]] += 1
        for token in np.flatnonzero(real):
            chosen = gates[token, choices[token]]
            total = {
                "before_capacity": chosen.sum(),
                "after_capacity": (chosen * served[token]).sum() + 1e-9,
                "none": 1.0,
            }
            for choice in np.flatnonzero(served[token]):
                weight = chosen[choice] / total[config.normalize]
                made[token] += weight * self.network(weights, x[token], choices[token, choice])
        return made
