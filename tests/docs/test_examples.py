"""The examples for clusters: linted, and what they set is what start_processes reads."""

import copy
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml

from namedmesh.processes.arguments import COORDINATOR, COUNT, INDEX, split_address

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "docs" / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.slurm"))
MANIFESTS: dict[str, Any] = {
    document["kind"]: document
    for path in sorted(EXAMPLES.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(path):
    commands = [["bash", "-n"], [sys.executable, "-m", "bashate.bashate", "--ignore=E006"]]
    if shutil.which("shellcheck"):
        commands.append(["shellcheck"])
    pytest.importorskip("bashate")
    for command in commands:
        done = subprocess.run([*command, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifests_are_those_of_kubernetes(kind):
    validate = pytest.importorskip("kubernetes_validate")
    document = copy.deepcopy(MANIFESTS[kind])
    validate.validate(document, validate.latest_version(), strict=True)
    document["spec"]["paralelism"] = 4
    with pytest.raises(validate.ValidationError):
        validate.validate(document, validate.latest_version(), strict=True)


def test_the_job_says_what_start_processes_needs():
    job, service = MANIFESTS["Job"], MANIFESTS["Service"]
    pod = job["spec"]["template"]["spec"]
    variables = {one["name"]: one for one in pod["containers"][0]["env"]}
    assert set(variables) == {COORDINATOR, COUNT, INDEX}
    host, port = split_address(variables[COORDINATOR]["value"], "coordinator")
    assert host == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert [port] == [one["port"] for one in service["spec"]["ports"]]
    assert (
        int(variables[COUNT]["value"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    )
    assert "job-completion-index" in variables[INDEX]["valueFrom"]["fieldRef"]["fieldPath"]
