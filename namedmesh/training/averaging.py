"""Evaluation: results averaged over batches, and a state shared with another program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import Executable, State
from namedmesh.training.arguments import check_executable


def average_results(
    step: Callable[..., tuple[State, Any]],
    state: State,
    batches: Iterable[Mapping[str, Any]],
    *,
    weigh: Callable[[Mapping[str, Any]], float] | str | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, np.ndarray | float]:
    """Run a step on every batch and average its results; the state stays as it is.

    Args:
        step: An Executable, or any function from a state and inputs to a state and a dict of
            results, which does not update its state.
        state: The state, for every batch.
        batches: The inputs of each call by name.
        weigh: The weight of a batch: a function of the batch, e.g. its number of tokens, or the
            name of a result; by default all batches weigh the same.
        names: The results to average; by default all of them.

    Returns:
        The weighted mean of each result: a float where it is a scalar, else an array.

    Example:
        >>> import numpy as np
        >>> from namedmesh.training import average_results
        >>> def step(state, x):
        ...     return state, {"loss": np.mean(x)}
        >>> batches = [{"x": np.array([1.0, 3.0, 2.0])}, {"x": np.array([6.0])}]
        >>> average_results(step, None, batches)
        {'loss': 4.0}
        >>> average_results(step, None, batches, weigh=lambda batch: len(batch["x"]))
        {'loss': 3.0}
    """
    rows: list[Mapping[str, Any]] = []
    weights: list[float] = []
    for batch in batches:
        # Results are fetched after the loop, so that the devices need not wait for this process.
        rows.append(step(state, **batch)[1])
        weights.append(float(weigh(batch)) if callable(weigh) else 1.0)
    if not rows:
        raise NamedMeshError("there is no batch to evaluate", fix="give at least one batch")
    if isinstance(weigh, str):
        weights = [float(results[weigh]) for results in rows]
    if min(weights) < 0 or not sum(weights) > 0:
        raise NamedMeshError(
            f"the weights of the batches are {weights}",
            fix="give weights that are not negative, at least one of them positive",
        )
    averages: dict[str, np.ndarray | float] = {}
    for name in rows[0] if names is None else names:
        values = [np.asarray(results[name], np.float64) for results in rows]
        mean = np.average(values, axis=0, weights=weights)
        averages[name] = float(mean) if mean.ndim == 0 else mean
    return averages


def share_state(state: State, executable: Executable) -> State:
    """Give another program the variables it needs from a state, e.g. evaluation those of training.

    Variables that are sharded as the other program needs them are not copied, unless it updates
    them.

    Args:
        state: A state with at least the variables of the other program.
        executable: The other program.

    Returns:
        A state of the other program.

    Example:
        >>> import namedmesh as nm
        >>> from namedmesh.training import share_state
        >>> use = lambda: nm.param("w", []) * 2
        >>> train = nm.compile(lambda: use() + nm.state("count", []), mesh=nm.Mesh(data=1))
        >>> test = nm.compile(use, mesh=nm.Mesh(data=1))
        >>> list(share_state(train.init(), test))
        ['w']
    """
    check_executable(executable, "the program to share with")
    for name in executable.variables:
        state[name]  # raises for a variable that is missing or used up
    arrays = {name: state.arrays[name] for name in executable.variables}
    return executable.place(State(arrays, {name: state.specs[name] for name in arrays}))
