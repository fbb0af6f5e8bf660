"""Algorithm 1 of the paper, token by token, as it is printed."""

import numpy as np


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def top2_gating(
    logits: np.ndarray, capacity: int, draws: np.ndarray, padding: np.ndarray | None = None
):
    """Route one group: combine weights (SEC), the auxiliary loss, and which choices were served."""
    gates = softmax(logits.astype(np.float64))
    tokens, experts = gates.shape
    real = np.ones(tokens, bool) if padding is None else ~padding
    combine = np.zeros((tokens, experts, capacity))
    served = np.zeros((2, tokens), bool)
    c = np.zeros(experts, int)
    m = gates[real].sum(0) / max(real.sum(), 1)
    choices = []
    for s in range(tokens):
        e1 = int(np.argmax(gates[s]))
        others = gates[s].copy()
        others[e1] = -1
        e2 = int(np.argmax(others))
        g1, g2 = gates[s, e1], gates[s, e2]
        choices.append((e1, e2, g1 / (g1 + g2), g2 / (g1 + g2)))
    for s in range(tokens):
        if not real[s]:
            continue
        e1, _, g1, _ = choices[s]
        place = c[e1]
        if c[e1] < capacity:
            combine[s, e1, place] = g1
            served[0, s] = True
        c[e1] = place + 1
    aux = np.mean(c / max(real.sum(), 1) * m)
    for s in range(tokens):
        if not real[s]:
            continue
        _, e2, _, g2 = choices[s]
        rnd = draws[s]
        place = c[e2]
        if place < capacity and 2 * g2 > rnd:
            combine[s, e2, place] = g2
            served[1, s] = True
        c[e2] = place + 1
    return combine, aux, served
