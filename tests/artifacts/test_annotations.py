"""What an annotation costs: nothing is imported for `step: nm.Step`."""

import json
import subprocess
import sys

CODE = """
import json, sys
import namedmesh as nm
from namedmesh.runtime import Artifact, Executable, State

def evaluate(step: nm.Step, other: nm.runtime.Executable, state: State, plan: nm.Plan): ...

print(json.dumps([name for name in ("tensorflow", "jax", "tensorstore") if name in sys.modules]))
"""


def test_an_annotation_imports_neither_tensorflow_nor_jax():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
