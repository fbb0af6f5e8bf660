"""All that touches jax's semi-private parts: a StableHLO module called from a jitted function. jax 0.10 and 0.11."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import config, distributed, xla_bridge
from jax._src.interpreters.mlir import merge_mlir_modules
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

_call = Primitive("namedmesh")
_call.multiple_results = True


@_call.def_abstract_eval
def _(*arguments, module, results):
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in results]


def _inline(context, *arguments, module, results):
    parsed = stablehlo.deserialize_portable_artifact(ir.Context.current, module)  # type: ignore[call-overload]
    types = list(ir.SymbolTable(parsed.operation)["main"].type.results)
    target = context.module_context
    name = merge_mlir_modules(
        target.module, "namedmesh_main", parsed, dst_symtab=target.symbol_table
    )
    return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(arguments)).results


mlir.register_lowering(_call, _inline)


def caller(module: bytes, results: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
    """A traceable function that runs a module."""
    return lambda *arguments: _call.bind(*arguments, module=module, results=results)


def gspmd() -> Any:
    """A context in which modules are partitioned by GSPMD, whose annotations ours are."""
    return config.use_shardy_partitioner(False)


def started() -> bool:
    """Whether jax has looked at its devices already, after which their number is fixed."""
    return xla_bridge.backends_are_initialized()


def one_of_several() -> bool:
    """Whether this process is one of several that share their devices (jax.distributed)."""
    return distributed.global_state.client is not None


def dtype_of(name: str) -> np.dtype:
    """The numpy dtype of a name, bfloat16 included."""
    return np.dtype(jax.numpy.bfloat16) if name == "bfloat16" else np.dtype(name)
