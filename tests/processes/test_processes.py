"""Processes of one program: how they meet, what they feed, fetch and agree on."""

import dataclasses
import json

import numpy as np
import pytest

import namedmesh as nm
from namedmesh.processes.arguments import ProcessArguments
from tests.processes.workers import START, run_processes

B, M, H = nm.dims("batch=6 model=4 hidden=8")  # a batch that four devices do not divide
MESH = nm.Mesh(data=4)


def train(x, target, rate):
    w = nm.param("w", [M, H], nm.normal_init(0.3))
    rows = nm.state("rows", [B])
    h = nm.tanh(nm.einsum([x, w], [B, H]))
    nm.assign(rows, nm.sum(h, over=H))
    loss = nm.mean(nm.square(nm.sum(h, over=H) - target))
    nm.assign(w, w - nm.grad(loss, w) * rate)
    return {"loss": loss, "h": h}


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x, target = rng.normal(size=(6, 4)), rng.normal(size=6)
    return {"x": x.astype(np.float32), "target": target.astype(np.float32)}


@pytest.fixture(scope="module")
def program() -> nm.Program:
    return nm.trace(train, nm.spec([B, M]), nm.spec([B]), nm.spec([]))


@pytest.fixture(scope="module")
def step(program) -> nm.Step:
    with pytest.warns(UserWarning, match="padded"):
        return nm.compile(program, mesh=MESH, layout="batch:data", params="hidden:data")


def test_one_process_feeds_and_fetches_everything(step):
    whole = {**batch(), "rate": np.float32(0.5)}
    assert step.rows("x") == slice(0, 6)
    fed = step.feed(whole)
    state, results = step(step.init(0), **fed)
    other, expected = step(step.init(0), **whole)
    np.testing.assert_array_equal(step.fetch(results)["h"], np.asarray(expected["h"]))
    np.testing.assert_array_equal(state.fetch("rows"), np.asarray(other["rows"]))
    assert state.fetch("rows").shape == (6,)
    assert state.digest() == other.digest()


def test_shards_make_the_whole(step):
    state, _ = step(step.init(0), **batch(), rate=0.5)
    for name in state:
        whole = np.full(state.specs[name].sizes, np.nan, np.float32)
        for shard in state.shards(name):
            whole[shard.index] = shard.data
        np.testing.assert_array_equal(whole, state.fetch(name))


def test_a_digest_is_that_of_the_bits_whatever_the_mesh(program, step):
    values = {"w": np.ones((4, 8), np.float32), "rows": np.zeros(6, np.float32)}
    digest = step.place(values).digest()
    other = nm.compile(program, mesh=nm.Mesh(data=2), layout="model:data")
    assert other.place(values).digest() == digest
    values["w"][2, 3] = np.nextafter(np.float32(1), np.float32(2))
    assert step.place(values).digest() != digest
    values["w"][2, 3], values["rows"][0] = 1, -0.0
    assert step.place(values).digest() != digest


def test_fed_rows_are_checked(step):
    whole = {**batch(), "rate": np.float32(0.5)}
    with pytest.raises(nm.NamedMeshError, match=r"input x was given as float32\[5, 4\]"):
        step.feed(whole | {"x": whole["x"][:5]})
    with pytest.raises(nm.NamedMeshError, match="2 inputs of train do not fit"):
        step.feed(whole | {"x": whole["x"][0], "target": "text"})
    with pytest.raises(nm.NamedMeshError, match="input 'rate' of train is missing"):
        step.feed(batch())
    with pytest.raises(nm.NamedMeshError, match="no input 'y'"):
        step.rows("y")
    with pytest.raises(nm.NamedMeshError, match="rate is a scalar and has no rows"):
        step.rows("rate")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"coordinator": "10.0.0.1"}, "is not an address with a port"),
        ({"coordinator": "10.0.0.1:99999"}, "is not an address with a port"),
        ({"coordinator": "::1:8476"}, "is not an address with a port"),
        ({"coordinator": 8476}, "is not a word"),
        ({"coordinator": "a:1", "count": 2, "index": 2}, "the index is too large"),
        ({"coordinator": "a:1", "count": 0, "index": 0}, "is not a whole number from 1"),
        ({"coordinator": "a:1", "count": 2, "index": -1}, "is not a whole number from 0"),
        ({"coordinator": "a:1", "count": True, "index": 0}, "is not a whole number"),
        ({"coordinator": "a:1", "bind": "b:c:1"}, "bind 'b:c:1' is not an address"),
        ({"devices": 0}, "is not a whole number from 1"),
        ({"method": "slrum", "coordinator": "a:1"}, "no method 'slrum'"),
        ({"count": 2}, "does not know coordinator and index"),
        ({"coordinator": "127.0.0.1:1", "index": 0}, "does not know count"),
        ({"coordinator": "127.0.0.1:2", "count": 2, "index": 0}, "jax has looked at its devices"),
    ],
)
def test_wrong_arguments_are_errors(arguments, problem):
    step_devices = nm.compile(lambda: nm.zeros([B]), mesh=nm.Mesh(data=1))  # jax has started
    assert step_devices.mesh.size == 1
    with pytest.raises(nm.NamedMeshError, match=problem) as error:
        nm.runtime.start_processes(**arguments)
    assert error.value.fix


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("JAX_NUM_PROCESSES", "two"),
        ("JAX_PROCESS_ID", "-1"),
        ("NAMEDMESH_DEVICES", "0"),
        ("JAX_COORDINATOR_ADDRESS", "nowhere"),
    ],
)
def test_a_wrong_environment_is_an_error(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(nm.NamedMeshError, match=value):
        nm.runtime.start_processes()


def test_arguments_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("JAX_NUM_PROCESSES", "8")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.9:1234")
    arguments = ProcessArguments(None, 2, 1, None, "0.0.0.0", None, 1.5, 10).complete()
    assert (arguments.coordinator, arguments.count) == ("10.0.0.9:1234", 2)
    assert (arguments.bind, arguments.timeout) == ("0.0.0.0:1234", 2)
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS")
    known = ProcessArguments(None, 2, 1, None, "10.0.0.3", None, 1, 10).complete()
    assert dataclasses.replace(known, coordinator="n0:77").checked().bind == "10.0.0.3:77"


def test_without_an_environment_there_is_one_process():
    assert nm.runtime.start_processes() == nm.runtime.Processes(1, 0, None)
    assert nm.runtime.start_processes("10.0.0.1:1", 1, 0).first


def test_slurm_is_detected(monkeypatch):
    given = {"JOB_ID": "17", "STEP_NODELIST": "node[004-007]", "NTASKS": "1", "PROCID": "0"}
    for name, value in {**given, "LOCALID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert nm.runtime.start_processes().count == 1
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.raises(nm.NamedMeshError, match="jax has looked at its devices"):
        nm.runtime.start_processes()
    monkeypatch.setenv("SLURM_PROCID", "4")
    with pytest.raises(nm.NamedMeshError, match="process 4 of 4"):
        nm.runtime.start_processes()


TRAIN = (
    START
    + """
from namedmesh.runtime import load
step = load(sys.argv[1])
whole = dict(np.load(sys.argv[2]))
rows = step.rows("x")
own = {name: array[step.rows(name)] for name, array in whole.items()}
state = step.init(0)
for _ in range(3):
    state, results = step(state, **step.feed({**own, "rate": 0.5}))
fetched = {**step.fetch(results), **{name: state.fetch(name) for name in state}}
shards = sum(shard.data.size for shard in state.shards("w"))
wrong = ""
try:
    step.feed({**whole, "rate": 0.5})
except ValueError as error:
    wrong = error.problem
np.savez(f"{sys.argv[3]}{processes.index}.npz", **fetched)
import psutil
sockets = psutil.Process().net_connections("tcp")
listens = {one.laddr.ip for one in sockets if one.status == "LISTEN"}
facts = [str(processes), [rows.start, rows.stop], state.digest(), shards, wrong, sorted(listens)]
print(json.dumps(facts))
"""
)


def test_two_processes_equal_one(step, tmp_path):
    step.artifact.save(tmp_path / "train.nmesh")
    np.savez(tmp_path / "batch.npz", **batch())  # pyright: ignore[reportArgumentType]
    files = [str(tmp_path / name) for name in ("train.nmesh", "batch.npz", "out")]
    ended = run_processes(TRAIN, 2, *files, devices=2)
    assert [one.status for one in ended] == [0, 0], ended[0].errors + ended[1].errors
    reports = [json.loads(one.output.splitlines()[-1]) for one in ended]
    state = step.init(0)
    for _ in range(3):
        state, results = step(state, **batch(), rate=0.5)
    expected = {**results, **{name: state[name] for name in state}}
    for index, (text, rows, digest, elements, wrong, listens) in enumerate(reports):
        assert text.startswith(f"process {index} of 2, coordinator 127.0.0.1:")
        assert rows == [[0, 4], [4, 6]][index]  # two devices of two rows, and padding behind six
        assert elements == 4 * 8 / 2  # half of w
        assert "input" in wrong and "do not fit" in wrong
        assert not {"0.0.0.0", "::"} & set(listens)  # never on all interfaces
        fetched = np.load(tmp_path / f"out{index}.npz")
        for name, array in expected.items():
            # gloo adds up in another order than the devices of one process do.
            np.testing.assert_allclose(fetched[name], array, rtol=1e-6, atol=1e-6, err_msg=name)
        assert digest == step.place({name: fetched[name] for name in state}).digest()
