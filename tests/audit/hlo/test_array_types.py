"""Types in HLO text, and the one table of element types."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.audit.hlo import ELEMENT_TYPES, ArrayType, TupleType, parse_type


@pytest.mark.parametrize(
    "name", [name for name in ELEMENT_TYPES if name not in ("token", "opaque")]
)
def test_widths_are_those_of_numpy_and_ml_dtypes(name):
    element = ELEMENT_TYPES[name]
    dtype = np.dtype(getattr(ml_dtypes, element.dtype, element.dtype))
    assert element.stored_bits == 8 * dtype.itemsize
    narrow = {"s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4}
    assert element.bits == narrow.get(name, 8 * dtype.itemsize)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int2", "int4", "int8", "int16", "int32",
     "uint2", "uint4", "uint8", "uint16", "uint32",
     "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn",
     "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "bfloat16", "float16",
     "float32", "complex64"],
)  # fmt: skip
def test_the_compilers_name_of_a_dtype_is_in_the_table(dtype):
    """What jax itself writes for an argument of each dtype that it has."""
    argument = jax.ShapeDtypeStruct((4,), jnp.dtype(dtype))
    text = jax.jit(lambda x: x).lower(argument).as_text(dialect="hlo")
    (line,) = [line for line in text.splitlines() if "parameter(0)" in line and " = " in line]
    type = parse_type(line.split(" = ")[1].split(" parameter")[0])
    assert isinstance(type, ArrayType) and type.element.dtype == dtype and type.sizes == (4,)


def test_an_array_has_sizes_and_a_layout():
    type = parse_type("bf16[64,100]{0,1:T(8,128)(2,1)S(1)}")
    assert type == ArrayType(
        ELEMENT_TYPES["bf16"], (64, 100), (0, 1), ((8, 128), (2, 1)), memory_space=1
    )
    assert str(type) == "bf16[64,100]" and type.elements == 6400


def test_tuples_nest_and_have_comments():
    type = parse_type("((f32[8]{0}, s32[]), /*index=1*/u32[], token[], ())")
    assert isinstance(type, TupleType) and len(type.parts) == 4
    assert [str(array) for array in type.arrays] == ["f32[8]", "s32[]", "u32[]", "token[]"]
    assert type.bytes == 32 + 4 + 4
    assert str(type) == "((f32[8], s32[]), u32[], token[], ())"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("f32[3,5]{1,0}", 60),
        ("pred[7]", 7),
        ("c128[2]", 32),
        ("f32[0,5]", 0),
        ("s4[5]", 5),  # a byte each, unless packed
        ("s4[5]{0:E(4)}", 3),
        ("f32[<=8,2]{1,0}", 64),  # of a dynamic size, the bound
        ("b(f32[4]{0})", 16),
        ("f32[10,100]{1,0:T(8,128)}", 16 * 128 * 4),
        ("f32[10,100]{0,1:T(8,128)}", 128 * 104 * 4),
        ("bf16[64,100]{1,0:T(8,128)(2,1)}", 64 * 128 * 2),
        ("f32[300]{0:T(256)}", 512 * 4),
        ("s32[]{:T(256)}", 256 * 4),
        ("f32[8,128]{1,0:T(8,128)S(1)}", 0),  # in a core's own fast memory
        ("(f32[2]{0}, /*index=1*/s32[3]{0})", 20),
        ("token[]", 0),
    ],
)
def test_bytes_have_the_padding_of_tiles(text, size):
    assert parse_type(text).bytes == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f33[8]", "cannot read compiled HLO: the element type 'f33' is unknown\n  f33[8]"),
        ("f32[?]", "'?' is not the size of a dimension"),
        ("f32", "expected a type at 'f32'"),
        ("(f32[8] s32[])", "expected ',' or ')' at 's32[])'"),
        ("f32[8] add", "'add' follows a type"),
    ],
)
def test_what_is_not_a_type_is_quoted(text, message):
    with pytest.raises(nm.NamedMeshError) as caught:
        parse_type(text)
    assert message in str(caught.value) and text in caught.value.details[0]
