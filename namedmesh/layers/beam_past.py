"""What `beam_search` remembers of its hypotheses, in two forms with equal results.

The ordinary form reorders the cache after every step; the paper's flat form (appendix A.1) never
moves it.
"""

from __future__ import annotations

from typing import Any

import namedmesh as nm
from namedmesh.layers.hypotheses import TokenDecoder


class OrdinaryPast:
    """Every hypothesis has its own past: sequences and cache are reordered after every step.

    Args:
        decoder: The decoder.
    """

    def __init__(self, decoder: TokenDecoder):
        self.decoder = decoder

    def start(self) -> dict[str, Any]:
        """Return the past before the first step.

        Returns:
            The empty cache, and sequences of zeros.
        """
        d = self.decoder
        return {"cache": d.start(), "tokens": nm.zeros([d.G, d.N, d.T], "int32")}

    def mask(self, past: dict[str, Any], step: nm.Tensor) -> nm.Tensor:
        """Return which steps attention sees.

        Args:
            past: The past.
            step: The step's number, int32.

        Returns:
            A bool tensor over T.
        """
        return nm.range(self.decoder.T) <= step

    def sequences(self, past: dict[str, Any]) -> nm.Tensor:
        """Return the tokens of each hypothesis.

        Args:
            past: The past.

        Returns:
            Tokens, GNT int32.
        """
        return past["tokens"]

    def follow(
        self, past: dict[str, Any], parent: nm.Tensor, tokens: nm.Tensor, step: nm.Tensor
    ) -> dict[str, Any]:
        """Return the past of new hypotheses, each an old one and a token.

        Args:
            past: The past of the old hypotheses.
            parent: The number of the old hypothesis, GN int32.
            tokens: The new token, GN int32.
            step: The step's number, int32.

        Returns:
            The past of the new hypotheses.
        """
        d = self.decoder
        cache = {
            name: {key: _reorder(tensor, parent, d.N) for key, tensor in layer.items()}
            for name, layer in past["cache"].items()
        }
        here = nm.equal(nm.range(d.T), step)
        sequences = nm.where(here, tokens, _reorder(past["tokens"], parent, d.N))
        return {"cache": cache, "tokens": sequences}


class FlatPast:
    """The hypotheses of a sentence are one interleaved sequence that is only ever appended to.

    A 0/1 mask tells which tokens belong to which hypothesis, and is all that is reordered.

    Args:
        decoder: The decoder.
    """

    def __init__(self, decoder: TokenDecoder):
        self.decoder = decoder
        self.diagonal = nm.equal(nm.range(decoder.N), nm.range(decoder.slot))  # N slot

    def start(self) -> dict[str, Any]:
        """Return the past before the first step: all start with the token in the first slot.

        Returns:
            The empty cache, the tokens written so far, and the mask.
        """
        d = self.decoder
        first = nm.equal(nm.range(d.T), 0) & nm.equal(nm.range(d.slot), 0)
        return {
            "cache": d.start(),
            "written": nm.zeros([d.T, d.G, d.slot], "int32"),
            "mask": nm.broadcast(first, [d.G, d.N, d.T, d.slot]),
        }

    def mask(self, past: dict[str, Any], step: nm.Tensor) -> nm.Tensor:
        """Return which steps of which slots attention sees.

        Args:
            past: The past.
            step: The step's number, int32.

        Returns:
            A bool tensor, GNT slot.
        """
        return past["mask"]

    def sequences(self, past: dict[str, Any]) -> nm.Tensor:
        """Return the tokens of each hypothesis, read through the mask.

        Args:
            past: The past.

        Returns:
            Tokens, GNT int32.
        """
        d = self.decoder
        inputs = nm.sum(nm.where(past["mask"], past["written"], 0), over=d.slot)
        # What is written at step t + 1 was chosen at step t.
        chosen = nm.shift(inputs, d.T, -1) if d.T.size > 1 else inputs
        return nm.transpose(chosen, [d.G, d.N, d.T])

    def follow(
        self, past: dict[str, Any], parent: nm.Tensor, tokens: nm.Tensor, step: nm.Tensor
    ) -> dict[str, Any]:
        """Return the past of new hypotheses, each an old one and a token.

        Args:
            past: The past of the old hypotheses.
            parent: The number of the old hypothesis, GN int32.
            tokens: The new token, GN int32.
            step: The step's number, int32.

        Returns:
            The past of the new hypotheses.
        """
        d = self.decoder
        following = nm.equal(nm.range(d.T), step + 1)
        mask = _reorder(past["mask"], parent, d.N) | (following & self.diagonal)
        slots = nm.rename(tokens, d.N, d.slot)
        written = nm.where(following, slots, past["written"])
        return {"cache": past["cache"], "written": written, "mask": mask}


def _reorder(tensor: nm.Tensor, parent: nm.Tensor, N: nm.Dimension) -> nm.Tensor:
    """Reorder a tensor's hypotheses: parent (GN) says which old one each new one is."""
    new = nm.Dimension("parent", N.size)
    reordered = nm.gather(tensor, nm.rename(parent, N, new), N)
    return nm.transpose(nm.rename(reordered, new, N), tensor.shape)
