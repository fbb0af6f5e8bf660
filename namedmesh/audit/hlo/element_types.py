"""The element types of HLO: their widths, and the names numpy and ml_dtypes have for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """One element type of HLO.

    Attributes:
        name: What HLO text calls it, such as `f32` or `s4`.
        bits: The bits that one element needs; tokens and opaque handles need none.
        dtype: The name numpy or ml_dtypes has for it, such as `float32`; HLO's own where they
            have none.
    """

    name: str
    bits: int
    dtype: str

    @property
    def stored_bits(self) -> int:
        """The bits an element takes in memory unless a layout packs it: at least a byte."""
        return max(8, self.bits) if self.bits else 0


_ROWS = (
    ("pred", 8, "bool"),
    *((f"s{bits}", bits, f"int{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)),
    *((f"u{bits}", bits, f"uint{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)),
    ("f4e2m1fn", 4, "float4_e2m1fn"),
    ("f8e3m4", 8, "float8_e3m4"),
    ("f8e4m3", 8, "float8_e4m3"),
    ("f8e4m3b11fnuz", 8, "float8_e4m3b11fnuz"),
    ("f8e4m3fn", 8, "float8_e4m3fn"),
    ("f8e4m3fnuz", 8, "float8_e4m3fnuz"),
    ("f8e5m2", 8, "float8_e5m2"),
    ("f8e5m2fnuz", 8, "float8_e5m2fnuz"),
    ("f8e8m0fnu", 8, "float8_e8m0fnu"),
    ("bf16", 16, "bfloat16"),
    ("f16", 16, "float16"),
    ("f32", 32, "float32"),
    ("f64", 64, "float64"),
    ("c64", 64, "complex64"),
    ("c128", 128, "complex128"),
    ("token", 0, "token"),
    ("opaque", 0, "opaque"),
)
ELEMENT_TYPES: dict[str, ElementType] = {row[0]: ElementType(*row) for row in _ROWS}
_BY_DTYPE = {element.dtype: element for element in ELEMENT_TYPES.values()}


def count_bytes(dtype: str, elements: int) -> int:
    """Count the bytes that elements take where nothing packs them."""
    return elements * _BY_DTYPE[dtype].stored_bits // 8
