"""Fine-tuning over frozen weights: they are stored in 16, 8 or 4 bits, and adapters are trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import namedmesh as nm
from namedmesh.layers import Weights

Dims = Sequence[nm.Dimension]
TABLES = ("embedding", "output")  # which are not quantized
REFERENCE = "reference/"  # begins the names of a copy that stays as it was at first
LEVELS = {"int8": 127.0, "int4": 7.0}
OURS = ("_quantized", "_absmax", "_down", "_up")  # ends of names that no file has


@dataclass(frozen=True)
class Tuning:
    """What is trained of a model whose weights exist.

    Attributes:
        rank: The rank of the adapters; 0 for none, where nothing is trained.
        frozen: What frozen weights are stored in: float32, bfloat16, int8 or int4.
        block: The elements of a column that share a scale, of int8 and int4; 0 for whole columns.
        alpha: The factor of the adapters, times their rank.
        targets: The weights that have adapters: of attention and of dense networks, but not those
            that make keys and values of latent vectors, which decoding never multiplies by.
    """

    rank: int = 8
    frozen: str = "bfloat16"
    block: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ("wq", "wk", "wv", "wo", "wi", "wi_gate", "wq_latent", "wk_latent")

    def __post_init__(self) -> None:
        kinds = ("float32", "bfloat16", *LEVELS)
        if self.rank < 0 or self.block < 0 or self.frozen not in kinds:
            raise nm.NamedMeshError(
                f"{self}: there is no such way to fine-tune",
                fix=f"choose a rank from 0, a block from 0, and frozen= of {', '.join(kinds)}",
            )


@dataclass(frozen=True)
class Adapters(Weights):
    """Weights that stay as they are, and products of two small matrices that are added to them.

    Attributes:
        tuning: How they are stored, and which have adapters.
        off: Whether the adapters are left out, as in the reference model of GRPO.
    """

    tuning: Tuning
    off: bool = False

    def make(
        self, name: str, dims: Dims, init: nm.Initializer | None, over: Dims = (), whole: Dims = ()
    ) -> nm.Tensor:
        """Return a frozen weight; those that products sum over are quantized."""
        t = self.tuning
        if over and t.frozen in LEVELS:
            code = Code.of(t, dims, over)
            values = nm.param(f"{name}_quantized", code.stored, dtype="int8", trainable=False)
            one = nm.constant_init(1.0)
            scales = nm.param(f"{name}_absmax", code.scales, one, trainable=False)
            return code.decode(values, scales)
        dtype = "float32"
        if over or name in TABLES:
            dtype = "bfloat16" if t.frozen in LEVELS else t.frozen
        return nm.param(name, dims, init, dtype, whole=whole, trainable=False)

    def adapt(self, x: nm.Tensor, y: nm.Tensor, name: str, dims: tuple[Dims, Dims]) -> nm.Tensor:
        """Add what the adapters make of x to a product with a frozen weight."""
        t, (over, to) = self.tuning, dims
        if self.off or not t.rank or name not in t.targets:
            return y
        R = nm.Dimension("rank", t.rank)
        down = nm.param(f"{name}_down", [*over, R], nm.fan_in_init(*over))
        up = nm.param(f"{name}_up", [R, *to], nm.constant_init(0.0))
        others = [dim for dim in x.shape if dim not in over]
        low = nm.einsum([x, nm.cast(down, x.dtype)], [*others, R])
        return y + nm.einsum([low, nm.cast(up, x.dtype)], y.shape.dims) * (t.alpha / t.rank)


@dataclass(frozen=True)
class Code:
    """How a weight is stored in 8 or 4 bits.

    Attributes:
        dims: The dimensions of the weight.
        over: Those that products sum over; the last is cut into blocks.
        block: The elements of that which share a scale.
        levels: The largest number that is stored.
    """

    dims: tuple[nm.Dimension, ...]
    over: tuple[nm.Dimension, ...]
    block: int
    levels: float

    @classmethod
    def of(cls, t: Tuning, dims: Sequence[nm.Dimension], over: Sequence[nm.Dimension]) -> Code:
        """Return the code of a weight; blocks divide the dimension that is cut."""
        if t.frozen == "int4" and over[-1].size % 2:
            raise nm.NamedMeshError(
                f"int4 stores pairs along {over[-1]}, which has an odd size", fix="use int8"
            )
        block = math.gcd(t.block, over[-1].size)
        return cls(tuple(dims), tuple(over), block if t.block else 0, LEVELS[t.frozen])

    @property
    def paired(self) -> bool:
        """Whether an int8 has two numbers."""
        return self.levels == LEVELS["int4"]

    @property
    def stored(self) -> list[nm.Dimension]:
        """The dimensions of what is stored; they keep their names, and so their places."""
        cut = self.over[-1]
        return [dim.resized(dim.size // (1 + self.paired)) if dim == cut else dim
                for dim in self.dims]  # fmt: skip

    @property
    def scales(self) -> list[nm.Dimension]:
        """The dimensions of the scales."""
        if not self.block:
            return [dim for dim in self.dims if dim not in self.over]
        cut = self.over[-1]
        return [dim.resized(dim.size // self.block) if dim == cut else dim for dim in self.dims]

    def encode(self, weight: nm.Tensor) -> tuple[nm.Tensor, nm.Tensor]:
        """Return the numbers and the largest magnitudes, which are their scales."""
        wide, cut = nm.cast(weight, "float32"), self.over[-1]
        sizes = nm.absolute(wide)
        if self.block:
            sizes, inner = self._split(sizes)
            largest = nm.max(sizes, over=inner)
        else:
            largest = nm.max(sizes, over=self.over)
        largest = nm.maximum(largest, 1e-30)
        numbers = nm.round(self._times(wide, self.levels / largest))
        if self.paired:
            half, pair = cut.resized(cut.size // 2), nm.Dimension("pair", 2)
            two = nm.reshape(numbers, cut, [half, pair])
            high, low = (
                nm.reshape(nm.slice(two, pair, i, 1), [half, pair.resized(1)], half) for i in (0, 1)
            )
            numbers = high * 16.0 + low
        return nm.cast(numbers, "int8"), largest

    def decode(self, values: nm.Tensor, scales: nm.Tensor) -> nm.Tensor:
        """Return the weight, float32."""
        numbers = nm.cast(values, "float32")
        if self.paired:
            cut, pair = self.over[-1], nm.Dimension("pair", 2)
            half = cut.resized(cut.size // 2)
            high = nm.floor((numbers + 8.0) * (1.0 / 16.0))
            both = nm.stack([high, numbers - high * 16.0], pair)
            at = [dim for dim in values.shape]
            at.insert(at.index(half) + 1, pair)
            numbers = nm.reshape(nm.transpose(both, at), [half, pair], cut)
        return self._times(numbers, scales * (1.0 / self.levels))

    def _split(self, weight: nm.Tensor) -> tuple[nm.Tensor, nm.Dimension]:
        """Cut a dimension into blocks; return the dimension within them too."""
        cut = self.over[-1]
        inner = nm.Dimension(f"{cut.name}_in_block", self.block)
        return nm.reshape(weight, cut, [cut.resized(cut.size // self.block), inner]), inner

    def _times(self, weight: nm.Tensor, scales: nm.Tensor) -> nm.Tensor:
        """Multiply every block by its scale."""
        if not self.block:
            return nm.transpose(weight * scales, weight.shape)
        split, inner = self._split(weight)
        cut = self.over[-1]
        product = nm.transpose(split * scales, split.shape)
        return nm.reshape(product, [cut.resized(cut.size // self.block), inner], cut)


Specs = Mapping[str, Any]  # variables of a program by name


def convert_program(plain: Specs, tuned: Specs, dtype: str) -> nm.Program:
    """Trace the step that stores weights of a dtype as a tuned model has them."""

    def convert() -> None:
        for name in _quantized(plain, tuned):
            weight = nm.param(name, plain[name].shape, dtype=dtype, trainable=False)
            made = _code(plain, tuned, name).encode(weight)
            for stored, one in zip(_stored(tuned, name), made, strict=True):
                nm.assign(stored, one)

    return nm.trace(convert)


def merge_program(plain: Specs, tuned: Specs, tuning: Tuning) -> nm.Program:
    """Trace the step that adds a tuned model's adapters to its weights, as a folder has them."""

    def merge() -> None:
        quantized = {*_quantized(plain, tuned)}
        for name, one in plain.items():
            kind = "float32" if name in quantized else tuned[name].dtype
            stored = nm.param(name, one.shape, dtype=kind, trainable=False)
            value = nm.cast(stored, "float32")
            if name in quantized:
                value = _code(plain, tuned, name).decode(*_stored(tuned, name))
            if f"{name}_down" in tuned:
                down, up = (
                    nm.param(f"{name}_{end}", tuned[f"{name}_{end}"].shape)
                    for end in ("down", "up")
                )
                added = nm.einsum([down, up], one.shape.dims)
                value = value + added * (tuning.alpha / tuning.rank)
            nm.assign(stored, nm.cast(value, kind))

    return nm.trace(merge)


def _quantized(plain: Specs, tuned: Specs) -> list[str]:
    """Return the names of the weights that are stored in 8 or 4 bits."""
    return [name for name in plain if f"{name}_quantized" in tuned]


def _stored(tuned: Specs, name: str) -> list[nm.Tensor]:
    """Return the numbers and the scales of a weight."""
    names = (f"{name}_quantized", f"{name}_absmax")
    return [nm.param(one, tuned[one].shape, None, tuned[one].dtype, trainable=False)
            for one in names]  # fmt: skip


def _code(plain: Specs, tuned: Specs, name: str) -> Code:
    """Return the code of a weight, which the shapes of its parts tell."""
    dims = plain[name].shape.dims
    numbers, scales = (tuned[f"{name}_{end}"].shape for end in ("quantized", "absmax"))
    halved = [dim for dim in dims if dim not in numbers.dims]
    levels = LEVELS["int4" if halved else "int8"]
    if scales.names == numbers.names:
        cut = [dim for dim in dims if dim not in scales.dims] or halved or dims[-1:]
        return Code(dims, (cut[0],), cut[0].size // scales.size_of(cut[0].name), levels)
    over = [dim for dim in dims if dim.name not in scales.names]
    return Code(dims, (*(dim for dim in over if dim not in halved), *halved), 0, levels)
