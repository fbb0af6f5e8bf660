"""Images of touching cells, drawn as they are needed."""

from __future__ import annotations

import numpy as np

SMALLEST, LARGEST = 4.0, 8.0  # the radius of a cell, in pixels
GAP_WEIGHT, GAP_WIDTH = 5.0, 3.0  # of the loss between two cells


def make_batch(seed: int, count: int, rows: int, columns: int) -> dict[str, np.ndarray]:
    """Draw images, their masks, and the weights of pixels.

    Args:
        seed: What the images are a function of.
        count: How many there are.
        rows: Their height.
        columns: Their width.

    Returns:
        The inputs of a step, by name.
    """
    rng = np.random.default_rng(seed)
    drawn = [_draw(rng, rows, columns) for _ in range(count)]
    names = ("image", "truth", "weight")
    batch = {
        name: np.stack(arrays) for name, arrays in zip(names, zip(*drawn, strict=True), strict=True)
    }
    return {**batch, "image": batch["image"][..., None]}


def _draw(rng: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, ...]:
    """Draw an image; return it, its mask, and the weight of every pixel."""
    cells = _place(rng, rows, columns)
    outside = _measure(cells, rows, columns)
    order = np.argsort(outside, 0)
    nearest, second = (np.take_along_axis(outside, order[i : i + 1], 0)[0] for i in (0, 1))
    truth = (nearest < 0) & (second > 0.8)  # a line of background between two cells
    gap = np.maximum(nearest, 0) + np.maximum(second, 0)
    weight = 1 + GAP_WEIGHT * ~truth * np.exp(-(gap**2) / (2 * GAP_WIDTH**2))
    down, across = np.mgrid[:rows, :columns] / max(rows, columns)
    angle, light = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.5)
    image = 0.3 + light * (np.cos(angle) * down + np.sin(angle) * across)
    brightness = rng.uniform(0.15, 0.5, len(cells))[order[0]]
    image = image + truth * brightness * (1 - 0.5 * np.exp(nearest))
    for y, x in rng.uniform(0, (rows, columns), (rows * columns // 500, 2)):  # dust
        image[int(y) : int(y) + 2, int(x) : int(x) + 2] += rng.uniform(0.2, 0.5)
    image = _blur(image) + rng.normal(0, 0.1, image.shape)
    return tuple(one.astype(np.float32) for one in (image, truth, weight))


def _place(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Place cells that do not overlap, most of them beside another.

    A cell is its middle, its radius, how much longer than wide it is, and in which direction.
    """
    wanted = max(rows * columns // 280, 2)
    cells = np.zeros([0, 5])
    for _ in range(50 * wanted):
        radius = rng.uniform(SMALLEST, LARGEST)
        middle = rng.uniform(0, (rows, columns))
        if len(cells) and rng.uniform() < 0.8:
            other, angle = cells[rng.integers(len(cells))], rng.uniform(0, 2 * np.pi)
            apart = other[2] + radius + rng.uniform(0, 1)
            middle = other[:2] + apart * np.array([np.sin(angle), np.cos(angle)])
        inside = 0 <= middle[0] < rows and 0 <= middle[1] < columns
        far = np.hypot(*(cells[:, :2] - middle).T) >= cells[:, 2] + radius
        if inside and far.all():
            shape = rng.uniform(0, 0.15), rng.uniform(0, np.pi)
            cells = np.vstack([cells, [*middle, radius, *shape]])
        if len(cells) == wanted:
            break
    return cells


def _measure(cells: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Measure how far pixels lie outside each cell; those inside have a negative distance."""
    y, x, radius, longer, angle = cells.T[:, :, None, None]
    down, across = np.arange(rows)[:, None] - y, np.arange(columns) - x
    edge = radius * (1 + longer * np.cos(2 * (np.arctan2(down, across) - angle)))
    return np.hypot(down, across) - edge


def _blur(image: np.ndarray) -> np.ndarray:
    """Blur as a microscope does, by a quarter of each neighbour."""
    for axis in (0, 1):
        edges = [(1, 1) if i == axis else (0, 0) for i in (0, 1)]
        low, middle, high = (
            np.take(np.pad(image, edges, mode="edge"), range(i, i + image.shape[axis]), axis)
            for i in range(3)
        )
        image = 0.25 * low + 0.5 * middle + 0.25 * high
    return image


def score_threshold(batches: list[dict[str, np.ndarray]]) -> float:
    """Score the best a fixed threshold of brightness can do: its intersection over union."""
    image = np.concatenate([batch["image"][..., 0] for batch in batches])
    truth = np.concatenate([batch["truth"] for batch in batches]) > 0
    scores = [
        (found & truth).sum() / (found | truth).sum()
        for found in (image > level for level in np.linspace(0.2, 1.2, 51))
    ]
    return float(max(scores))
