"""A small residual network in names: strides, skips, batch norms, a mean over all of space."""

from __future__ import annotations

from dataclasses import dataclass

import namedmesh as nm
from namedmesh.layers import batch_norm, convolution, cross_entropy, dense


@dataclass(frozen=True)
class ResNet:
    """A residual network of some sizes; `hidden` channels are those inside blocks."""

    batch: int = 4
    rows: int = 16
    columns: int = 16
    width: int = 4
    classes: int = 5

    def specs(self) -> dict[str, nm.InputSpec]:
        B, R, C, P = nm.dims(
            f"batch={self.batch} rows={self.rows} columns={self.columns} colours=3"
        )
        return {"image": nm.spec([B, R, C, P]), "label": nm.spec([B], "int32")}

    def loss(self, image: nm.Tensor, label: nm.Tensor) -> nm.Tensor:
        with nm.scope("stem"):
            x = nm.relu(self._convolve(image, 5, 2, nm.Dimension("features", self.width)))
        with nm.scope("first"):
            x = self._block(x, self.width, 1)
        with nm.scope("second"):
            x = self._block(x, 2 * self.width, 2)
        _, R, C, F = x.shape
        classes = nm.Dimension("classes", self.classes)
        with nm.scope("head"):
            scores = dense(nm.mean(x, over=[R, C]), [F], [classes], bias=True)
        return nm.mean(cross_entropy(scores, label, classes)[0])

    def _block(self, x: nm.Tensor, width: int, stride: int) -> nm.Tensor:
        hidden, features = nm.Dimension("hidden", width), nm.Dimension("features", width)
        with nm.scope("narrow"):
            y = nm.relu(self._convolve(x, 3, stride, hidden))
        with nm.scope("wide"):
            y = self._convolve(y, 3, 1, features)
        if stride > 1:
            x = nm.rename(x, x.shape.dims[-1], nm.Dimension("before", x.shape.dims[-1].size))
            with nm.scope("skip"):
                x = self._convolve(x, 1, stride, features)
        return nm.relu(x + y)

    def _convolve(self, x: nm.Tensor, window: int, stride: int, to: nm.Dimension) -> nm.Tensor:
        _, R, C, before = x.shape
        y = convolution(x, {R: window, C: window}, [before], [to], stride=stride)
        return batch_norm(y, list(y.shape)[:-1], training=True)
