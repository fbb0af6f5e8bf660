"""A U-Net in names: convolutions at several scales, joined across by skips."""

from __future__ import annotations

from dataclasses import dataclass

import namedmesh as nm
from namedmesh.layers import (
    Adam,
    binary_cross_entropy,
    convolution,
    cosine_decay,
    dense,
    group_norm,
    linear_warmup,
    weighted_mean,
)


@dataclass(frozen=True)
class UNet:
    """A U-Net of some sizes.

    A layout can split `batch`, `rows` and `columns`, and `hidden`, the channels inside a block;
    `features`, those between blocks, stay whole.

    Attributes:
        batch: The images of a step.
        rows: The height of an image.
        columns: The width of an image.
        width: The channels of the first level; each level below has twice as many.
        levels: How many there are, each of half the rows and columns of the one above.
        groups: The groups of channels that are normalised together.
        dtype: What activations are computed in; weights, moments and the loss are float32.
    """

    batch: int = 16
    rows: int = 64
    columns: int = 64
    width: int = 8
    levels: int = 3
    groups: int = 4
    dtype: str = "float32"

    def specs(self) -> dict[str, nm.InputSpec]:
        """Return the images, and what should be found in them: 1 or 0, and how much it matters."""
        B, R, C = self._space()
        return {
            "image": nm.spec([B, R, C, nm.Dimension("colours", 1)]),
            "truth": nm.spec([B, R, C]),
            "weight": nm.spec([B, R, C]),
        }

    def _space(self) -> list[nm.Dimension]:
        return nm.dims(f"batch={self.batch} rows={self.rows} columns={self.columns}")

    def __call__(self, image: nm.Tensor) -> nm.Tensor:
        """Compute a score for each pixel: the sigmoid of it is the probability of a cell."""
        x, skips = nm.cast(image, self.dtype), []
        for level in range(self.levels):
            with nm.scope(f"down_{level}"):
                x = self._block(x, self.width << level)
            if level + 1 < self.levels:
                skips.append(x)
                _, R, C, _ = x.shape
                x = nm.pool(x, {R: 2, C: 2}, padding="same")
        for level in reversed(range(self.levels - 1)):
            skip = skips[level]
            (_, R, C, _), (_, rows, columns, _) = x.shape, skip.shape
            x = nm.concat([skip, nm.resize(x, {R: rows.size, C: columns.size})], "features")
            with nm.scope(f"up_{level}"):
                x = self._block(x, self.width << level)
        with nm.scope("score"):
            return nm.cast(dense(x, [x.shape.dims[-1]], [], bias=True), "float32")

    def _block(self, x: nm.Tensor, width: int) -> nm.Tensor:
        """Return two convolutions, each normalised: to hidden channels, and to features."""
        for name in ("hidden", "features"):
            _, R, C, before = x.shape
            after = nm.Dimension(name, width)
            with nm.scope(name):
                x = convolution(x, {R: 3, C: 3}, [before], [after])
                x = nm.relu(group_norm(x, after, self.groups, over=[R, C]))
        return x


def train_program(model: UNet, learning_rate: float, steps: int) -> nm.Program:
    """Trace one step of training."""

    def train_step(image, truth, weight):
        loss = weighted_mean(binary_cross_entropy(model(image), truth), weight)
        schedule = linear_warmup(cosine_decay(learning_rate, steps=steps), steps=20)
        watched = Adam(schedule, clip_norm=1.0).apply(nm.grad(loss))
        return {"loss": loss, "grad_norm": watched["grad_norm"]}

    return nm.trace(train_step, **model.specs())


def evaluate_program(model: UNet) -> nm.Program:
    """Return the scores of a batch, its loss, and the pixels in both masks and in either."""

    def evaluate_step(image, truth, weight):
        scores = model(image)
        found = nm.cast(scores > 0.0, "float32")
        both = nm.sum(found * truth)
        return {
            "loss": weighted_mean(binary_cross_entropy(scores, truth), weight),
            "both": both,
            "either": nm.sum(found) + nm.sum(truth) - both,
            "scores": scores,
        }

    return nm.trace(evaluate_step, **model.specs())
