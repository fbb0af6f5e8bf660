"""Every public name is imported from namedmesh.layers, means one thing, and costs no TensorFlow."""

import inspect
import pathlib
import subprocess
import sys
from collections.abc import Callable

import namedmesh as nm
from namedmesh import layers

FOLDER = pathlib.Path(layers.__file__).parent
INTERNAL = {"mistakes"}  # helpers of the layers themselves
HELPERS = {"DecodingTask", "check_tokens", "reorder"}  # of decoding methods
HELPERS |= {"run_experts", "score_experts"}  # of both mixtures
PUBLIC = {
    name
    for name, value in vars(layers).items()
    if not name.startswith("_") and not inspect.ismodule(value)
}
MODULES = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def public_definitions() -> dict[str, object]:
    """Every function and class that a module of the layers defines without an underscore."""
    definitions = {}
    for module in MODULES - INTERNAL:
        for name, value in vars(sys.modules[f"namedmesh.layers.{module}"]).items():
            here = getattr(value, "__module__", None) == f"namedmesh.layers.{module}"
            own = here and not name.startswith("_") and name not in HELPERS
            if own and (inspect.isclass(value) or callable(value)):
                definitions[name] = value
    return definitions


def test_every_public_definition_is_exported():
    assert {*public_definitions()} <= PUBLIC


def test_no_module_shares_its_name_with_a_public_name():
    assert set() == MODULES & PUBLIC
    assert inspect.isfunction(nm.layers.moe) and inspect.isfunction(nm.layers.config)


def public_functions() -> dict[str, Callable[..., object]]:
    """Every public function, and every public method that a public class defines itself."""
    functions = {}
    for name, value in public_definitions().items():
        if inspect.isfunction(value):
            functions[name] = value
        for attribute, method in vars(value).items() if inspect.isclass(value) else ():
            field = attribute in vars(value).get("__annotations__", {})
            if inspect.isfunction(method) and not attribute.startswith("_") and not field:
                functions[f"{name}.{attribute}"] = method
    return functions


def test_public_functions_and_methods_have_types():
    untyped = []
    for name, function in public_functions().items():
        signature = inspect.signature(function)
        arguments = [p for p in signature.parameters.values() if p.name != "self"]
        if any(p.annotation is p.empty for p in arguments):
            untyped.append(name)
        if signature.return_annotation is signature.empty:
            untyped.append(name)
    assert untyped == []


def test_public_names_have_examples_that_run():
    definitions = public_definitions().items()
    missing = [name for name, value in definitions if ">>>" not in (value.__doc__ or "")]
    assert missing == []


def test_importing_the_layers_imports_neither_tensorflow_nor_jax():
    code = "import sys, namedmesh.layers; print({'tensorflow', 'jax'} & {*sys.modules})"
    environment = {"PYTHONPATH": str(FOLDER.parent.parent)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "set()", done.stderr
