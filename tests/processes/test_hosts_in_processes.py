"""Two processes of four devices: the mesh's hosts are theirs, and other numbers are refused."""

import json
import socket
import subprocess
import sys

import namedmesh as nm

WORKER = """
import json, sys
import jax
import numpy as np

address, index, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, index)

from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import load

step = load(f"{folder}/hosts2.nmesh", strict=True)
rows = np.arange(64, dtype=np.float32).reshape(16, 4) / 64
state, loss = step(step.init(0), rows)
found = {"loss": float(loss), "exact": step.audit.exact}
found["hosts"] = [[one.process_index for one in row] for row in step.mesh.devices.tolist()]
for name in ("hosts4", "hosts1"):
    try:
        load(f"{folder}/{name}.nmesh")
        found[name] = "runs"
    except NamedMeshError as error:
        found[name] = [error.problem, error.fix]
print(json.dumps(found))
"""


B, M, H = nm.dims("batch=16 model=4 hidden=8")


def train(x):
    w = nm.param("w", [M, H])
    loss = nm.mean(nm.square(nm.einsum([x, w], [B, H])))
    nm.assign(w, w - nm.grad(loss, w))
    return loss


def test_hosts_of_a_mesh_are_processes(tmp_path):
    program = nm.trace(train, x=nm.spec([B, M]))
    for hosts in (1, 2, 4):
        mesh = nm.Mesh(data=4, tensor=2, hosts=hosts)
        nm.export(program, mesh, "batch:data, hidden:tensor").save(tmp_path / f"hosts{hosts}.nmesh")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, address, str(index), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    printed = [worker.communicate(timeout=240)[0] for worker in workers]
    found = [json.loads(text.splitlines()[-1]) for text in printed]
    assert found[0] == found[1]
    assert found[0]["exact"] and found[0]["hosts1"] == "runs"
    assert found[0]["hosts"] == [[0, 0], [0, 0], [1, 1], [1, 1]], "data goes across"
    problem, fix = found[0]["hosts4"]
    assert problem == "the mesh has 4 hosts, and its 8 devices are in 2 processes"
    assert "hosts=2" in fix
