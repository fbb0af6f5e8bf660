"""Beam search: the hypotheses of each group compete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import namedmesh as nm
from namedmesh.layers.decoding import IMPOSSIBLE, DecodingTask, reorder
from namedmesh.layers.mistakes import Within, check_options, raise_mistakes

Exponent = Annotated[
    float, Within(lambda value: 0 <= value <= 10, "a number from 0 (no length normalization) to 10")
]


def length_penalty(length: nm.Tensor | float, alpha: float) -> Any:
    """Return GNMT's divisor of log probabilities: ((5 + length) / 6) ** alpha.

    Args:
        length: The length of a sequence, a number or a float tensor.
        alpha: The exponent; 0 means no penalty.

    Example:
        >>> length_penalty(7.0, 1.0)
        2.0
    """
    return ((length + 5.0) / 6.0) ** alpha


@dataclass(frozen=True)
class Beam:
    """Search for the best sequences of each group of hypotheses; a method of `decode`.

    Keeps the N best unfinished and the N best finished hypotheses of a group, until no unfinished
    one can become better. The hypotheses of a group must start equal, in tokens and in the cache,
    which is reordered after every step to follow those that were kept.

    The `sequences` are sorted, best first; their `scores` are log probabilities divided by the
    length penalty, -1e9 where there are fewer sequences.

    Attributes:
        hypotheses: The dimension of the hypotheses of a group; its size is the beam's width.
        alpha: The exponent of GNMT's length penalty, from 0 (none) to 10.

    Example:
        >>> B, N, T, V = nm.dims("batch=1 hypothesis=2 step=2 vocab=4")
        >>> step = lambda tokens, cache: (nm.one_hot(tokens + 1, V), cache)
        >>> count = lambda first: decode(step, (), first, T, Beam(N, alpha=0.0))["sequences"]
        >>> nm.evaluate(count, first=([B, N], [[0, 0]])).tolist()
        [[[1, 2], [1, 0]]]
    """

    hypotheses: nm.Dimension
    alpha: Exponent = 0.6

    def __post_init__(self) -> None:
        raise_mistakes("Beam", check_options("Beam: ", self))

    def __call__(self, task: DecodingTask) -> dict[str, nm.Tensor]:
        """Decode a task of `decode`."""
        N, T, end = self.hypotheses, task.T, task.end
        if N not in task.first.shape:
            raise nm.NamedMeshError(
                f"Beam: the first tokens have no dimension {N}",
                str(task.first),
                fix="give each hypothesis its first token, e.g. by nm.broadcast",
            )
        groups = [dim for dim in task.first.shape if dim != N]
        rows = [*groups, N]
        # Of twice as many candidates as hypotheses, at most half end, so the beam stays full.
        C, K = nm.Dimension("candidate", 2 * N.size), nm.Dimension("pool", 3 * N.size)
        only_first = nm.where(nm.equal(nm.range(N), 0), 0.0, IMPOSSIBLE)  # N: all start out equal
        first = {
            "step": nm.zeros([], "int32"),
            "tokens": nm.transpose(task.first, rows),
            "alive": nm.broadcast(only_first, rows),
            "written": nm.zeros([*rows, T], "int32"),
            "scores": nm.full(rows, IMPOSSIBLE),
            "sequences": nm.zeros([*rows, T], "int32"),
            "cache": task.cache,
        }

        def unfinished(carry: dict[str, Any]) -> nm.Tensor:
            best_possible = nm.max(carry["alive"], over=N) / length_penalty(T.size, self.alpha)
            settled = nm.min(carry["scores"], over=N) >= best_possible
            return (carry["step"] < T.size) & ~nm.all(settled)

        def search_step(carry: dict[str, Any]) -> dict[str, Any]:
            step = carry["step"]
            is_last = nm.equal(step, T.size - 1)
            logits, W, cache = task.score(carry["tokens"], carry["cache"])
            scores = carry["alive"] + nm.log_softmax(logits, over=W)  # GNW
            if end is not None:
                scores = nm.where(task.is_end(nm.range(W)) | ~is_last, scores, IMPOSSIBLE)
            best, index = _choose_candidates(scores, N, W, C)  # GC
            parent, token = nm.floor_divide(index, W.size), nm.remainder(index, W.size)
            ends = nm.broadcast(is_last, token.shape) if end is None else task.is_end(token)

            possible = ends & (best > IMPOSSIBLE / 2)
            normalized = best / length_penalty(nm.cast(step + 1, "float32"), self.alpha)
            finished = nm.where(possible, normalized, IMPOSSIBLE)
            here = nm.equal(nm.range(T), step)
            ended = nm.where(here, token, nm.gather(carry["written"], parent, N))  # GCT
            pool = _join(carry["scores"], finished, K)
            top, chosen = nm.top_k(pool, K, N)  # GN
            sequences = nm.gather(_join(carry["sequences"], ended, K), chosen, K)

            alive, survivors = nm.top_k(nm.where(ends, IMPOSSIBLE, best), C, N)  # GN
            tokens, parents = nm.gather(token, survivors, C), nm.gather(parent, survivors, C)
            return {
                "step": step + 1,
                "tokens": tokens,
                "alive": nm.maximum(alive, IMPOSSIBLE),
                "written": nm.where(here, tokens, reorder(carry["written"], parents, N)),
                "scores": top,
                "sequences": nm.transpose(sequences, [*rows, T]),
                "cache": reorder(cache, parents, N),
            }

        last = nm.while_loop(unfinished, search_step, first)
        return {"sequences": last["sequences"], "scores": last["scores"], "steps": last["step"]}


def _choose_candidates(
    scores: nm.Tensor, N: nm.Dimension, W: nm.Dimension, C: nm.Dimension
) -> tuple[nm.Tensor, nm.Tensor]:
    """Return the C best of all hypotheses and tokens (GNW), and their numbers n * W + w."""
    # The best of each hypothesis come first, so that no tensor of size N * W is sorted.
    own = nm.Dimension("own_candidate", min(C.size, W.size))
    best, token = nm.top_k(scores, W, own)  # GN own
    number = nm.range(N) * W.size + token
    together = nm.Dimension("own_candidates", N.size * own.size)
    groups = scores.shape.without(N.name).without(W.name)

    def flatten(tensor: nm.Tensor) -> nm.Tensor:
        return nm.reshape(nm.transpose(tensor, [*groups, N, own]), [N, own], together)

    top, place = nm.top_k(flatten(best), together, C)
    return top, nm.gather(flatten(number), place, together)


def _join(first: nm.Tensor, second: nm.Tensor, K: nm.Dimension) -> nm.Tensor:
    """Concatenate what finished earlier (GN ..) and what has just ended (GC ..) along K."""
    (N,) = [dim for dim in first.shape if dim not in second.shape.dims]
    (C,) = [dim for dim in second.shape if dim not in first.shape.dims]
    order = [dim if dim != N else C for dim in first.shape]
    earlier = nm.rename(first, N, K.resized(N.size))
    new = nm.rename(nm.transpose(second, order), C, K.resized(C.size))
    return nm.concat([earlier, new], K)
