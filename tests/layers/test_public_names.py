"""Every public name is imported from namedmesh.layers, means one thing, and costs no TensorFlow."""

import inspect
import pathlib
import subprocess
import sys

import namedmesh as nm
from namedmesh import layers

FOLDER = pathlib.Path(layers.__file__).parent
INTERNAL = {"mistakes"}  # helpers of the layers themselves
MODULES = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def public_definitions() -> dict[str, object]:
    """Every function and class that a module of the layers defines without an underscore."""
    definitions = {}
    for module in MODULES - INTERNAL:
        for name, value in vars(sys.modules[f"namedmesh.layers.{module}"]).items():
            here = getattr(value, "__module__", None) == f"namedmesh.layers.{module}"
            if here and not name.startswith("_") and (inspect.isclass(value) or callable(value)):
                definitions[name] = value
    return definitions


def test_every_public_definition_is_exported():
    internal = {"ValueRange", "check_tokens"}
    assert {*public_definitions()} - internal <= {*layers.__all__}
    for name in layers.__all__:
        assert hasattr(layers, name), name


def test_no_module_shares_its_name_with_a_public_name():
    assert MODULES & {*layers.__all__} == set()
    assert inspect.isfunction(nm.layers.moe) and inspect.isfunction(nm.layers.config)


def test_public_definitions_have_examples_and_types():
    missing = []
    for name, value in public_definitions().items():
        if not inspect.isfunction(value):
            continue
        signature = inspect.signature(value)
        typed = all(p.annotation is not p.empty for p in signature.parameters.values())
        if not typed or signature.return_annotation is signature.empty:
            missing.append(f"types of {name}")
        if ">>>" not in (value.__doc__ or ""):
            missing.append(f"example of {name}")
    assert missing == []


def test_importing_the_layers_imports_neither_tensorflow_nor_jax():
    code = "import sys, namedmesh.layers; print({'tensorflow', 'jax'} & {*sys.modules})"
    environment = {"PYTHONPATH": str(FOLDER.parent.parent)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "set()", done.stderr
