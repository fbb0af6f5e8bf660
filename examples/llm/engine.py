"""Continuous batching: requests come and go while others are written, in slots of one batch.

All slots share a clock, whose ticks are the positions of a ring of keys and values. A prompt is
read at once by a first program and put in front of the clock; a second one writes a token for every
slot. Both have the same variables, so that the cache stays where it is.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import namedmesh as nm
from examples.llm import weights
from examples.llm.model import LanguageModel, weights_of
from examples.llm.settings import Settings
from examples.llm.training import compile_program
from examples.llm.tuning import load_tuned
from namedmesh.layers import Cache, Sample, use_weights
from namedmesh.runtime import State


@dataclass
class Request:
    """A text to write.

    Attributes:
        prompt: Its tokens.
        most: The most tokens to write.
        temperature, top_p: How they are drawn; temperature 0 takes the likeliest.
        end: Tokens that end the text.
        tokens, log_probabilities: What was written so far.
        finished: None while it is written, `"stop"` after an end token, or `"length"`.
        on_token: Called after each token.
    """

    prompt: list[int]
    most: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    end: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    finished: str | None = None
    on_token: Callable[[Request], None] = lambda request: None


class Engine:
    """A model of a folder of weights that writes up to `settings.batch` texts at once.

    Args:
        folder: The folder.
        settings: The number of slots (`batch`), the longest prompt (`length`), and the layout.
        size: The most tokens of a prompt and its text together.
        seed: Of what is drawn.

    Attributes:
        read, write: The two programs; `read.artifact.save(path)` keeps one.
        ends: The tokens that end a text, as the folder has them.
        longest: The most tokens of a prompt.
        slots: The request of every slot, or None.
    """

    def __init__(self, folder: pathlib.Path, settings: Settings, size: int, *, seed: int = 0):
        self.settings, self.size, self.seed = settings, size, seed
        self.ends, self.longest = weights.read_ends(folder), min(settings.length, size - 1)
        self.read = compile_program(self._trace_read(), settings)
        self.write = compile_program(self._trace_write(), settings)
        first = load_tuned(folder, self.write, settings)
        other = load_tuned(folder, self.read, settings)
        self._arrays = {**other.arrays, **first.arrays}
        self.slots: list[Request | None] = [None] * settings.batch
        self._last = np.zeros(settings.batch, np.int32)

    def add(self, request: Request) -> bool:
        """Read the prompt of a request into a slot that is free; return whether there is one."""
        if not 1 <= len(request.prompt) <= self.longest:
            raise nm.NamedMeshError(
                f"a prompt of {len(request.prompt)} tokens", fix=f"send 1 to {self.longest} tokens"
            )
        if request.most < 1 or len(request.prompt) + request.most > self.size:
            raise nm.NamedMeshError(
                f"{request.most} tokens after a prompt of {len(request.prompt)}",
                fix=f"ask for at least one, and at most {self.size} tokens together",
            )
        if None not in self.slots:
            return False
        slot, longest = self.slots.index(None), self.settings.length
        row = np.zeros(longest, np.int32)
        row[longest - len(request.prompt) :] = request.prompt
        padding = np.array([longest - len(request.prompt)], np.int32)
        # The last token is written by the first step, which scores what follows it.
        self._run(self.read, prompt=row[None, :-1], padding=padding, slot=np.int32(slot))
        self.slots[slot], self._last[slot] = request, row[-1]
        return True

    def step(self) -> list[Request]:
        """Write a token for every slot; return the requests that are finished."""
        plain = Request([])
        requests = [one or plain for one in self.slots]
        drawn = self._run(
            self.write,
            last=self._last,
            live=np.array([one is not None for one in self.slots]),
            heat=np.array([one.temperature for one in requests], np.float32),
            share=np.array([one.top_p for one in requests], np.float32),
            seed=np.int32(self.seed),
        )
        tokens, scores = (np.asarray(drawn[name]) for name in ("tokens", "scores"))
        self._last, done = tokens.copy(), []
        for i, request in enumerate(self.slots):
            if request is None:
                continue
            request.tokens.append(int(tokens[i]))
            request.log_probabilities.append(float(scores[i]))
            if request.tokens[-1] in request.end:
                request.finished = "stop"
            elif len(request.tokens) >= request.most:
                request.finished = "length"
            request.on_token(request)
            if request.finished:
                done.append(request)
                self.slots[i] = None
        return done

    def cancel(self, request: Request) -> None:
        """Give up a request, whose slot is free then."""
        self.slots = [None if one is request else one for one in self.slots]

    def _run(self, program: nm.Step, **inputs: Any) -> Any:
        """Run one of the programs on the variables that both have."""
        own = {name: self._arrays[name] for name in program.variables}
        state, results = program(State(own, program.variables), **inputs)
        self._arrays |= state.arrays
        return results

    def _cache(self, model: LanguageModel) -> tuple[Cache, dict[str, nm.Tensor], dict[str, Any]]:
        """Return the cache of all slots, its tensors, and the state of the clock."""
        rows = [nm.Dimension("batch", self.settings.batch), nm.Dimension("hypothesis", 1)]
        keep = None if model.latent is None else {"latent": [model.latent.cached]}
        layers, ring = nm.dims(f"layer={model.architecture.layers} position={self.size}")
        cache = Cache(layers, ring, model.heads, rows, dtype=self.settings.dtype, entries=keep)
        past = {
            name: nm.state(f"cache/{name}", [cache.rows, *rows, *own], dtype=cache.dtype)
            for name, own in cache.entries.items()
        }
        clock = {
            "tick": nm.state("clock/tick", [], dtype="int32"),
            "mask": nm.state("clock/mask", [rows[0], ring], dtype="bool"),
            "place": nm.state("clock/place", [rows[0]], dtype="int32"),
        }
        return cache, past, clock

    def _trace_read(self) -> nm.Program:
        """Trace the program that reads a prompt, all but its last token, into a slot."""
        s = self.settings
        one = LanguageModel(s.but(batch=1, cache_shards=1))
        P = nm.Dimension("prompt", max(s.length - 1, 1))

        def read(prompt: nm.Tensor, padding: nm.Tensor, slot: nm.Tensor) -> None:
            cache, past, clock = self._cache(one)
            (B, _), ring = cache.dims, cache.steps
            small = Cache(nm.Dimension("layer", one.architecture.layers), P, one.heads, [one.B],
                          dtype=cache.dtype, entries=cache.entries)  # fmt: skip
            view = one._for_rows(P, padding, small)
            filled = one._run(one._embed(prompt, small.empty()), view)["cache"]
            # Which token of the prompt belongs to each position of the ring: the last one is before
            # the clock's next tick.
            tick = clock["tick"]
            token = nm.remainder(nm.range(ring) - tick + P.size, ring.size)
            skipped = nm.sum(padding, over=one.B)
            real = (token < P.size) & (token >= skipped)
            here = nm.equal(nm.range(B), slot)
            L = nm.Dimension("layer", one.architecture.layers)
            for name, tensor in past.items():
                new = nm.sum(filled[name], over=one.B)  # there is one
                new = nm.reshape(new, small.rows, [L, P])
                new = nm.gather(new, nm.minimum(token, P.size - 1), P)
                new = nm.reshape(nm.transpose(new, [L, ring, *cache.entries[name]]), [L, ring],
                                 cache.rows)  # fmt: skip
                whole = nm.broadcast(new, tensor.shape)
                nm.assign(tensor, nm.where(here, nm.cast(whole, tensor.dtype), tensor))
            nm.assign(clock["mask"], nm.where(here, real, clock["mask"]))
            nm.assign(clock["place"], nm.where(here, P.size - skipped, clock["place"]))

        row, number = nm.spec([one.B, P], "int32"), nm.spec([one.B], "int32")
        with use_weights(weights_of(s)):
            return nm.trace(read, row, number, nm.spec([], "int32"))

    def _trace_write(self) -> nm.Program:
        """Trace the program that writes a token for every slot."""
        model = LanguageModel(self.settings.but(cache_shards=1))

        def write(
            last: nm.Tensor, live: nm.Tensor, heat: nm.Tensor, share: nm.Tensor, seed: nm.Tensor
        ) -> dict[str, nm.Tensor]:
            cache, past, clock = self._cache(model)
            (B, N), ring, tick = cache.dims, cache.steps, clock["tick"]
            row = nm.remainder(tick, ring.size)
            mask = nm.where(nm.equal(nm.range(ring), row), live, clock["mask"])
            time = {"step": row, "mask": mask}
            view = dataclasses.replace(model._for_step(cache, time, None), positions=clock["place"])
            carry = model._run(model._embed(nm.broadcast(last, [B, N]), past), view)
            logits = nm.sum(nm.cast(model._score(carry["h"], view), "float32"), over=N)
            draw = Sample(nm.random.key_from_seed(seed), temperature=heat, top_p=share)
            tokens = draw.choose(logits, model.V, tick)
            hot = nm.one_hot(tokens, model.V)
            scores = nm.sum(nm.log_softmax(logits, over=model.V) * hot, over=model.V)
            for name, tensor in past.items():
                nm.assign(tensor, carry["cache"][name])
            nm.assign(clock["tick"], tick + 1)
            nm.assign(clock["mask"], mask)
            nm.assign(clock["place"], clock["place"] + 1)
            return {"tokens": tokens, "scores": scores}

        B = model.B
        with use_weights(weights_of(self.settings)):
            return nm.trace(
                write, last=nm.spec([B], "int32"), live=nm.spec([B], "bool"), heat=nm.spec([B]),
                share=nm.spec([B]), seed=nm.spec([], "int32"),
            )  # fmt: skip
