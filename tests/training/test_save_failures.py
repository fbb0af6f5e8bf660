"""Saving that fails: nothing of the checkpoint is left, those before stay, the error says why."""

import contextlib
import errno
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.errors.errors import NamedMeshError
from namedmesh.runtime import State
from namedmesh.training import Checkpoints, chunks, saving
from tests.training.programs import batch, compiled, same, values

ROOT = pathlib.Path(__file__).parent.parent.parent


def large_state(step: int, count: int = 2**18) -> State:
    """A megabyte of different numbers."""
    return State({"w": jnp.arange(count, dtype=jnp.float32) + step}, {})


@contextlib.contextmanager
def largest_file(size: int):
    """A quota: no file of this process may be larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 100, 3000, 2**19])
def test_a_quota_leaves_the_last_checkpoint_and_nothing_else(tmp_path, size):
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        checkpoints.save(1, large_state(1))
        checkpoints.wait()
        with largest_file(size):
            checkpoints.save(2, large_state(2))
            with pytest.raises(NamedMeshError) as error:
                checkpoints.wait()
        assert error.value.problem.startswith(f"step 2 could not be saved in {tmp_path}: ")
        assert "File too large" in error.value.problem
        assert error.value.fix == "free space on that disk or raise the quota, and save again"
        assert checkpoints.steps == [1]
        assert [path.name for path in tmp_path.glob("[!.]*")] == ["1"]
        checkpoints.save(2, large_state(2))  # with space, it works
    assert Checkpoints(tmp_path).steps == [1, 2]


@pytest.mark.parametrize("place", ["write", "commit"])
def test_a_full_disk_is_an_error_of_the_next_call(tmp_path, monkeypatch, place):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    owner, name = {
        "write": (saving.ChunkWriter, "write"),
        "commit": (saving.CheckpointFolder, "commit"),
    }[place]
    state = compiled("train", "two").place(values())
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(1, state)
    checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refuse)
        checkpoints.save(2, state)
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(3, state)
    assert error.value.problem == (
        f"step 2 could not be saved in {tmp_path}: No space left on device"
    )
    checkpoints.save(3, state)
    checkpoints.close()
    assert Checkpoints(tmp_path).steps == [1, 3]


def test_the_error_of_the_with_statement_comes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(saving.ChunkWriter, "write", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="step 1 could not be saved"):
        with pytest.raises(KeyError, match="mine"), Checkpoints(tmp_path, keep=3) as checkpoints:
            checkpoints.save(1, large_state(1))
            raise KeyError("mine")


def test_a_folder_that_vanishes_is_an_error_that_says_so(tmp_path):
    folder = tmp_path / "checkpoints"
    with Checkpoints(folder, keep=3) as checkpoints:
        checkpoints.save(1, large_state(1))
        checkpoints.wait()
        shutil.rmtree(folder)
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(2, large_state(2))
        assert error.value.problem == f"the folder of the checkpoints {folder} has vanished"
        assert error.value.fix.startswith("mount or restore it")
    assert not folder.exists()


def test_a_folder_that_vanishes_while_it_is_written_is_no_checkpoint(tmp_path, monkeypatch):
    write = saving.ChunkWriter.write

    def write_after_removal(writer, shards):
        shutil.rmtree(tmp_path / "1.part", ignore_errors=True)
        return write(writer, shards)

    monkeypatch.setattr(saving.ChunkWriter, "write", write_after_removal)
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(1, large_state(1))
    with pytest.raises(NamedMeshError, match="vanished while it was written"):
        checkpoints.wait()
    assert list(tmp_path.glob("[!.]*")) == []


def test_a_folder_that_may_not_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NamedMeshError) as error:
        Checkpoints(tmp_path / "file" / "checkpoints", keep=3)
    assert "file" in str(error.value) and error.value.fix


def test_extra_that_is_too_large_to_be_read_back_is_an_error(tmp_path):
    with Checkpoints(tmp_path, keep=3) as checkpoints:
        with pytest.raises(NamedMeshError) as error:
            checkpoints.save(1, large_state(1), {"text": "x" * (64 * 2**20)})
        assert error.value.fix.startswith("save what is large in a file of its own")
    assert list(tmp_path.glob("[!.]*")) == []


LOOP = """
import sys
import jax.numpy as jnp
from namedmesh.runtime import State
from namedmesh.training import Checkpoints
with Checkpoints(sys.argv[1], keep=2) as checkpoints:
    step = (checkpoints.latest or 0)
    while True:
        step += 1
        arrays = {f"w{n}": jnp.full((50_000,), step, jnp.float32) for n in range(8)}
        checkpoints.save(step, State(arrays, {}), {"step": step})
        print(step, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_is_killed_while_it_saves_loses_no_checkpoint(tmp_path, seed):
    chance = random.Random(seed)
    child = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(chance.randrange(2, 6)):
        started = int(child.stdout.readline())
    time.sleep(chance.random() * 0.05)
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split()
    child.wait()
    started = int(rest[-1]) if rest else started
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest in (started - 1, started)
        names = {path.name for path in tmp_path.glob("[!.]*")}
        assert names == {str(one) for one in checkpoints.steps}
        for step in checkpoints.steps:
            assert checkpoints.read_extra(step) == {"step": step}
            assert stored_values(tmp_path, step) == {float(step)}


def stored_values(folder: pathlib.Path, step: int) -> set[float]:
    """All values of a checkpoint, as tensorstore reads them."""
    import tensorstore

    found: set[float] = set()
    for name in json.loads((folder / str(step) / "record.json").read_text())["record"]["variables"]:
        database = {"driver": "ocdbt", "base": f"file://{folder}/{step}/arrays/"}
        spec = {"driver": "zarr3", "kvstore": {**database, "path": f"{name}/"}}
        spec |= {"fill_missing_data_reads": False}
        array = tensorstore.open(spec, open=True).result()
        found |= set(np.unique(array.read().result()).tolist())
    return found


# The first write of the large state waits, so that how much is copied before anything is written
# does not depend on how fast the disk is.
MEMORY = """
import re, sys, time
def most():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
from namedmesh.runtime import State, use_cpu_devices
use_cpu_devices(2)
import jax, jax.numpy as jnp
from namedmesh.training import Checkpoints, saving
bound = int(sys.argv[2]) or None
write, waits = saving.ChunkWriter.write, []
def write_late(writer, shards):
    time.sleep(waits.pop() if waits else 0)
    return write(writer, shards)
saving.ChunkWriter.write = write_late
arrays = {f"w{n}": jnp.full((2**22,), n, jnp.float32) for n in range(20)}  # 320 MiB
jax.block_until_ready(arrays)
with Checkpoints(sys.argv[1], keep=1, host_memory=bound) as checkpoints:
    checkpoints.save(1, State({"w": jnp.zeros(10)}, {}))
    checkpoints.wait()
    before = most()
    waits.append(3)
    checkpoints.save(2, State(arrays, {}))
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    for name in arrays:  # what the save holds cannot be overwritten
        arrays[name] = step(arrays[name])
    jax.block_until_ready(arrays)
print(most() - before)
"""


def test_a_save_stays_within_the_memory_given(tmp_path):
    grown = {}
    for bound in (0, 32 * 2**20):
        command = [sys.executable, "-c", MEMORY, str(tmp_path / str(bound)), str(bound)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        grown[bound] = int(done.stdout) / 2**10
    assert grown[0] > 300
    assert grown[32 * 2**20] < 130


@pytest.mark.parametrize("bound", [1, 100, 10**9])
def test_a_state_may_be_used_up_while_it_is_saved_with_any_bound(tmp_path, bound):
    executable, expected = compiled("train", "two"), values()
    with Checkpoints(tmp_path, keep=1, host_memory=bound) as checkpoints:
        state = executable.place(expected)
        checkpoints.save(1, state)
        executable(state, **batch())
    with Checkpoints(tmp_path, host_memory=bound) as checkpoints:
        restored = checkpoints.restore(executable).state
    assert all(same(restored[name], expected[name]) for name in expected)


def test_host_memory_is_checked(tmp_path):
    for wrong in (0, -1, "1 GB", 1.5):
        with pytest.raises(NamedMeshError) as error:
            Checkpoints(tmp_path, keep=1, host_memory=wrong)  # pyright: ignore
        assert error.value.problem == f"host_memory={wrong!r} is not a count"


def test_no_thread_and_no_file_handle_is_left(tmp_path):
    import threading

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, large_state(step))
        checkpoints.wait()
        threads, files = threading.active_count(), open_files()
        for step in range(4, 12):
            checkpoints.save(step, large_state(step))
        checkpoints.wait()
        jax.block_until_ready(large_state(0).arrays)
        assert threading.active_count() <= threads and open_files() <= files


def test_a_save_on_cpus_copies_nothing_and_the_next_step_overwrites_nothing(tmp_path, monkeypatch):
    read, go_on, values_read = saving.HostMemory.read, threading.Event(), {}

    def watch(memory, data):
        values_read[data.unsafe_buffer_pointer()] = read(memory, data)
        return values_read[data.unsafe_buffer_pointer()]

    def write_late(writer, shards):
        assert go_on.wait(30)
        return write(writer, shards)

    write = saving.ChunkWriter.write
    monkeypatch.setattr(saving.HostMemory, "read", watch)
    monkeypatch.setattr(saving.ChunkWriter, "write", write_late)
    executable, expected = compiled("train", "two"), values()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        state = executable.place(expected)
        checkpoints.save(1, state)
        assert all(array.ctypes.data == start for start, array in values_read.items())
        saved = {start: array.copy() for start, array in values_read.items()}
        following, _ = executable(state, **batch())
        shards = [one for array in following.arrays.values() for one in array.addressable_shards]
        updated = {shard.data.unsafe_buffer_pointer() for shard in shards}
        for start, array in values_read.items():
            np.testing.assert_array_equal(array, saved[start])
        go_on.set()
        checkpoints.wait()
        assert updated - saved.keys()
        restored = checkpoints.restore(executable, 1).state
    assert all(same(restored[name], expected[name]) for name in expected)


def test_a_save_that_is_done_leaves_the_memory_to_the_steps(tmp_path):
    executable = compiled("train", "two")
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    state = executable.place(values())
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.wait()
        for array in state.arrays.values():
            step(array)
            assert array.is_deleted()


@pytest.mark.parametrize("limit", [1, 1000, 10**9])
def test_memory_for_a_save_is_bounded(limit):
    memory, read = saving.HostMemory(limit), []
    arrays = [jnp.zeros(size, jnp.uint8) for size in (400, 300, 400, 500, 300, 2000, 400)]

    def read_all():
        for array in arrays:
            read.append(memory.read(array))

    thread = threading.Thread(target=read_all)
    thread.start()
    written = 0
    while written < len(arrays):
        held = sum(one.nbytes for one in read[written:])
        assert held <= limit or len(read) <= written + 1
        if len(read) > written:
            memory.release(read[written].nbytes)
            written += 1
    thread.join()


@pytest.mark.parametrize("reserves", [False, True])
@pytest.mark.parametrize("limit", [None, 3000])
def test_with_memory_on_the_devices_a_save_does_not_wait_for_copies(
    tmp_path, monkeypatch, limit, reserves
):
    begun, go_on, copy = threading.Event(), threading.Event(), saving.HostMemory.read
    first = True

    def slow_copy(memory, data):
        if not first:
            begun.set()
            assert go_on.wait(30)
        return copy(memory, data)

    monkeypatch.setattr(saving.HostMemory, "read", slow_copy)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 600)  # of 2048 bytes: four pieces
    free = 2**19
    monkeypatch.setattr(saving, "unused_bytes", lambda _device: free)
    state = lambda step: State({name: large_state(step, 512).arrays["w"] for name in "abc"}, {})
    donate = jax.jit(lambda x: x * 0, donate_argnums=0)
    with Checkpoints(tmp_path, keep=3, host_memory=limit) as checkpoints:
        if reserves:
            checkpoints.reserve(state(1))
        else:
            checkpoints.save(1, state(1))  # before the first one perhaps no step was taken
            checkpoints.wait()
        first, second = False, state(2)
        checkpoints.save(2, second)
        assert begun.wait(30)
        for array in second.arrays.values():
            donate(array)  # the next step
        go_on.set()
        checkpoints.wait()
        step = compiled_reader(512)
        np.testing.assert_array_equal(
            np.asarray(checkpoints.restore(step, 2).state["b"]), np.arange(512) + 2
        )
        free, begun = 100, threading.Event()  # copies had their memory before
        checkpoints.save(3, state(3))
        assert begun.wait(30)
    memory = saving.HostMemory(None)
    assert memory.copy_on_devices([("w", ((0, 9),), jnp.zeros(9))]) is None
    assert memory.copy_on_devices([("w", ((0, 99),), jnp.zeros(99))]) is None


# In a new process, where tensorstore has no threads yet.
RESUME = """
import os, pathlib, sys
import namedmesh as nm
from namedmesh.training import Checkpoints

def priorities():
    names = {one: (one / "comm").read_text() for one in pathlib.Path("/proc/self/task").iterdir()}
    pool = [int(one.name) for one, name in names.items() if name.startswith("ts_pool")]
    return {os.getpriority(os.PRIO_PROCESS, number) for number in pool}

step = nm.compile(lambda: nm.param("w", [], nm.constant_init(1.0)) * 2, mesh=nm.Mesh(data=1))
with Checkpoints(sys.argv[1], keep=2) as checkpoints:
    state = checkpoints.restore(step).state
    before = priorities()
    checkpoints.save(2, state)
    checkpoints.wait()
print(before, priorities(), os.getpriority(os.PRIO_PROCESS, 0))
"""


def reuse_places(checkpoints, first):
    """Make states until one's arrays are where those of another, which is gone, were."""
    places = {id(array) for array in first().arrays.values()}
    for number in range(1000):
        later = State({name: jnp.full(4, float(number)) for name in "ab"}, {})
        if {id(array) for array in later.arrays.values()} == places:
            return later
    pytest.skip("Python put every array elsewhere")


def test_arrays_in_the_places_of_others_are_another_state(tmp_path):
    """Of a state that is gone, arrays of the next may have the place: they are still others."""
    with Checkpoints(tmp_path, keep=3) as checkpoints:

        def save_and_forget():
            state = State({name: jnp.full(4, -1.0) for name in "ab"}, {})
            checkpoints.save(5, state)
            checkpoints.wait()
            return state

        other = reuse_places(checkpoints, save_and_forget)
        with pytest.raises(nm.NamedMeshError, match="not the state that was saved"):
            checkpoints.save(5, other)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_save_that_is_interrupted_while_it_copies_on_devices_ends(tmp_path, monkeypatch, error):
    def interrupt(_memory, _shards):
        raise error("stopped here")

    with Checkpoints(tmp_path, keep=3) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(saving.HostMemory, "copy_on_devices", interrupt)
            with pytest.raises(error):
                checkpoints.save(1, large_state(1))
        assert checkpoints._saving is not None
        checkpoints._saving._thread.join(10)
        assert not checkpoints._saving._thread.is_alive()
        with pytest.raises(nm.NamedMeshError, match="could not be copied"):
            checkpoints.wait()
        checkpoints.save(1, large_state(1))
    assert checkpoints.steps == [1]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority")
def test_a_save_after_a_restore_yields_to_the_step(tmp_path):
    step = nm.compile(lambda: nm.param("w", [], nm.constant_init(1.0)) * 2, mesh=nm.Mesh(data=1))
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        checkpoints.save(1, step.init())
    command = [sys.executable, "-c", RESUME, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert done.stdout.split("\n")[0] == f"{{{own}}} {{19}} {own}"


@pytest.mark.parametrize("shape", [(), (5,), (6, 10), (3, 4, 50), (2, 1, 96)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pieces_on_a_device_are_the_whole(monkeypatch, shape, dtype):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 100)
    values = np.arange(math.prod(shape)).reshape(shape).astype(jnp.dtype(dtype))
    start = [7 * (axis + 1) for axis in range(len(shape))]
    bounds = tuple((one, one + size) for one, size in zip(start, shape, strict=True))
    data = jax.device_put(values)
    pieces = saving.cut_on_devices([("w", bounds, data), ("v", bounds, data + 1)])
    others = [piece for piece in pieces if piece[0] == "v"]
    pieces = [piece for piece in pieces if piece[0] == "w"]
    for (_, box, piece), (_, place, other) in zip(pieces, others, strict=True):
        assert box == place
        np.testing.assert_array_equal(np.asarray(piece + 1), np.asarray(other))
    data.delete()
    found = np.zeros([7 * 3 + 96] * len(shape), values.dtype)
    for name, box, piece in pieces:
        assert name == "w" and piece.nbytes <= 100 * saving.PIECE_CHUNKS
        found[tuple(slice(*ends) for ends in box)] += np.asarray(piece)  # none comes twice
    np.testing.assert_array_equal(found[tuple(slice(*ends) for ends in bounds)], values)
    assert sum(piece.nbytes for _, _, piece in pieces) == values.nbytes
    assert len(pieces) > 1 or values.nbytes <= 100 * saving.PIECE_CHUNKS


def test_pieces_on_a_device_are_whole_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 100)
    for shape, count in (((8, 25), 2), ((2, 1, 96), 2), ((3, 4, 50), 1), ((5, 25), 1), ((5,), 1)):
        chunk = chunks.choose_chunk(shape, 4)
        for _, box, piece in saving.cut_on_devices(
            [("w", tuple((0, size) for size in shape), jnp.zeros(shape))]
        ):
            for (low, high), part in zip(box, chunk, strict=True):
                assert low % part == 0 and high % part == 0
            assert piece.size == count * math.prod(chunk)


def compiled_reader(count: int) -> nm.Step:
    """A program that reads three variables."""
    (N,) = nm.dims(f"n={count}")
    return nm.compile(lambda: [nm.param(name, [N]) * 2 for name in "abc"], mesh=nm.Mesh(data=1))
