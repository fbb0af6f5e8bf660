"""What people write who come from numpy, jax and PyTorch: accepted, or told what to write."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import namedmesh

nm: Any = namedmesh  # pyright would refuse what these tests write
B, M, H = nm.dims("batch=4 model=8 hidden=2")


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32"])
def test_dtypes_of_numpy_are_dtypes(dtype):
    made = [
        nm.spec([B], dtype).dtype,
        *(
            nm.trace(function).outputs[0].dtype
            for function in (
                lambda: nm.full([B], 1.0, dtype),
                lambda: nm.range(B, dtype),
                lambda: nm.param("w", [B], dtype=dtype),
                lambda: nm.random.uniform(nm.random.key(0), [B], dtype=dtype),
                lambda: nm.cast(nm.zeros([B], np.int32), dtype),
                lambda: nm.zeros([B], ml_dtypes.bfloat16).cast(dtype),
            )
        ),
    ]
    assert made == ["float32"] * 7


def test_a_shape_equals_a_list_of_its_dimensions():
    assert nm.Shape([B, M]) == [B, M] and nm.Shape([B, M]) == (B, M)
    assert nm.Shape([B, M]) != [M, B] and nm.Shape([B]) != [B, M]


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda x: nm.einsum("bm->b", x, x), "nm.einsum([x, w], [B, H])"),
        (lambda x: nm.evaluate(abs, np.ones(8)), "nm.evaluate(function, x=([M], array))"),
        (lambda x: nm.search(x, 8, "h100", None), "nm.search(program, devices, target, *, hosts"),
    ],
)
def test_the_fix_is_a_call_that_works(call, fix):
    with pytest.raises(nm.NamedMeshError) as caught:
        nm.trace(call, nm.spec([B, M]))
    assert f"fix: write {fix}" in str(caught.value)


@pytest.mark.parametrize(("name", "meant"), [("jit", "nm.compile"), ("matmul", "nm.einsum")])
def test_names_of_other_libraries_are_known(name, meant):
    with pytest.raises(AttributeError, match=f"did you mean {meant}"):
        getattr(nm, name)
