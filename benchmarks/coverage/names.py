"""The public names, and why some of them are not ops."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterable

import namedmesh as nm

_TOOL = "it works on programs and machines, not on tensors"
_VALUE = "a type of values that functions take or return"
_MODEL = "made of the layers here, with decisions of its own; tests/layers compares it with numpy"
_SCHEDULE = "it makes a function of the step's number, a scalar that lies on no device"
_OPTIMIZER = "it assigns variables; tests/layers/test_optimizer_layouts.py runs it under layouts"

NOT_OPS = {
    **dict.fromkeys(("aot", "runtime", "testing", "training"), _TOOL),
    **dict.fromkeys(
        ("compile", "cost", "diff", "evaluate", "export", "inspect", "load_plan", "plan", "report",
         "search", "trace", "write_saved_model", "load_weights", "save_weights"),
        _TOOL,
    ),
    **dict.fromkeys(
        ("Artifact", "Cost", "Diff", "Dimension", "Hardware", "Initializer", "InputSpec",
         "Inspection", "Layout", "LayoutConflict", "Mesh", "NamedMeshError", "Op", "Placement",
         "Plan", "PlanRecord", "Program", "Search", "Shape", "Step", "Tensor", "WeightRule"),
        _VALUE,
    ),
    "dims": "it makes dimensions, not tensors",
    "spec": "it describes an operand",
    "named": "it gives an array the names of its dimensions",
    "scope": "it names variables",
    "update_in_loops": "it marks the updates of an optimizer",
    "print": "it makes nothing; tests/runtime/test_print.py runs it under layouts",
    **dict.fromkeys(
        ("row_gradient", "update_rows"),
        "tables have it; tests/layers/test_row_updates.py runs it under layouts",
    ),
    **dict.fromkeys(
        ("quantize", "dequantize", "scaled_einsum", "send_in_8_bits", "layers.Float8"),
        "they round to 8 bits; tests/ops/test_eight_bits.py and tests/layers/test_eight_bits.py "
        "run them under layouts",
    ),
    "parameters": "it lists the variables made so far",
    "transfer": "it moves a state; tests/training/test_transfer.py runs it under layouts",
    "state": "it holds a value between steps; tests/ops/test_state.py runs it under layouts",
    "assign": "it stores a value for the next step; tests/ops/test_state.py runs it under layouts",
    **dict.fromkeys(
        ("layers.LatentHeads", "layers.average_values", "layers.Backbone",
         "layers.Transformer", "layers.LayerStack", "layers.Decoder",
         "layers.decode", "layers.Beam", "layers.Greedy", "layers.Sample"),
        _MODEL,
    ),
    **dict.fromkeys(
        ("layers.Batch", "layers.CHOICES", "layers.CONFIGS", "layers.Cache", "layers.Config",
         "layers.EinsumDispatch", "layers.ExpertRouting", "layers.GatherDispatch", "layers.Heads",
         "layers.LayerContext", "layers.ParameterUpdate", "layers.RateSchedule", "layers.Routing",
         "layers.RowUpdate", "layers.Side", "layers.UpdateRule", "layers.Weights"),
        _VALUE,
    ),
    **dict.fromkeys(
        ("layers.as_schedule", "layers.constant_rate", "layers.cosine_decay",
         "layers.inverse_square_root", "layers.linear_cooldown", "layers.linear_warmup"),
        _SCHEDULE,
    ),
    **dict.fromkeys(
        ("layers.Adafactor", "layers.Adagrad", "layers.Adam", "layers.Muon", "layers.Optimizer",
         "layers.Sgd", "layers.Soap"),
        _OPTIMIZER,
    ),
    **dict.fromkeys(
        ("layers.rotary_frequencies", "layers.yarn_magnitude"),
        "it makes constants; tests/layers compares them",
    ),
    **dict.fromkeys(
        ("layers.get_weights", "layers.use_weights"),
        "they say how layers make weights; tests/examples/test_llm_tuning.py trains with them",
    ),
    "layers.batch_of": "it collects operands by name",
    "layers.config": "it looks up a configuration",
    "layers.expert_capacity": "it makes a dimension",
    "layers.get_activation": "it looks up an op by name",
    "layers.make_dispatch": "it chooses between two forms of moe, which is here",
}  # fmt: skip


def public_names() -> list[str]:
    """Return every name that users meet: of namedmesh, and of its modules that hold ops."""
    names = []
    for name in dir(nm):
        value = getattr(nm, name)
        if name.startswith("_"):
            continue
        if isinstance(value, types.ModuleType) and name not in NOT_OPS:
            names += [f"{name}.{member}" for member in _members(value)]
        else:
            names.append(name)
    return names


def _members(module: types.ModuleType) -> Iterable[str]:
    """Return the public names of a module: what it defines, and what it imports as itself."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname == alias.name)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield node.name


def unlisted(ops: Iterable[str]) -> list[str]:
    """Return the public names that are neither among the ops of a table nor known not to be one."""
    known = {op.split(" ")[0] for op in ops} | NOT_OPS.keys()
    return [name for name in public_names() if name not in known]
