"""Transfers between meshes, layouts and dtypes, against numpy and jax's own index maps."""

import dataclasses

import jax
import numpy as np
import pytest

import namedmesh as nm
from namedmesh.dims.sharding import Sharding
from namedmesh.runtime import VariableSpec
from namedmesh.training import Checkpoints
from namedmesh.training import transfer as transfers_module
from namedmesh.training.transfer import TransferPlan
from tests.training.programs import compiled, same, values
from tests.training.transfers import boxes, least_bytes, place, random_program, shardings


def random_pair(seed: int) -> tuple[nm.Artifact, nm.Artifact, dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    ranks = random.integers(0, 4, 3)
    sizes = [tuple(map(int, random.integers(1, 14, rank))) for rank in ranks]
    arrays = {f"v{i}": random.normal(size=one).astype(np.float32) for i, one in enumerate(sizes)}
    return random_program(random, sizes), random_program(random, sizes), arrays


def check_lands_once(plan: TransferPlan, before: nm.Artifact, after: nm.Artifact) -> None:
    for old, new in zip(before.variables, after.variables, strict=True):
        held, arrived = boxes(before, old), {}
        for move in plan.routes[new.name].moves:
            inside = tuple(slice(*one) for one in move.bounds)
            count = arrived.setdefault(move.target, np.zeros(new.sizes, int))
            count[inside] += 1
            # A relayed box is there after the first moves; any other, from the start.
            assert move.relayed or held[move.source][inside].all()
        for device, mask in boxes(after, new).items():
            assert np.array_equal(arrived.get(device, np.zeros(new.sizes, int)), mask)


@pytest.mark.parametrize("first, last", [(0, 4), (4, 70), (70, 135), (135, 200)])
def test_random_pairs_of_meshes_and_layouts_land_once_with_the_least_bytes(first, last):
    for seed in range(first, last):
        before, after, arrays = random_pair(seed)
        plan = nm.transfer(before, after)
        check_lands_once(plan, before, after)
        least, _ = least_bytes(before, after, 8)
        assert plan.bytes_moved == least, seed
        assert plan.bytes_between_hosts == 0
        moved = plan(place(before, arrays), donate=bool(seed % 2))
        for spec in after.variables:
            array = moved.arrays[spec.name]
            assert array.shape == spec.padded(after.mesh)
            assert array.sharding.is_equivalent_to(shardings(after)[spec.name], array.ndim)
            whole = np.asarray(array)
            assert same(whole[tuple(map(slice, spec.sizes))], arrays[spec.name]), (seed, spec)
            assert np.count_nonzero(whole) == np.count_nonzero(arrays[spec.name])  # zero padding


def test_each_box_crosses_between_hosts_once():
    for seed in range(200):
        before, after, _ = random_pair(seed)
        if before.mesh.devices != 8 or after.mesh.devices != 8:
            continue
        hosts = tuple(i // 4 for i in range(8))
        plan = nm.transfer(before, after)
        total = between = 0
        for old, new in zip(before.variables, after.variables, strict=True):
            places = [
                transfers_module.ShardGrid.of_spec(spec, program.mesh)
                for spec, program in ((old, before), (new, after))
            ]
            moves = transfers_module.plan_moves(new.sizes, *places, hosts)
            sent = [one for one in moves if one.source != one.target]
            total += 4 * sum(one.elements for one in sent)
            far = [one for one in sent if hosts[one.source] != hosts[one.target]]
            between += 4 * sum(one.elements for one in far)
        assert (total, between) == least_bytes(before, after, 4), seed
        assert plan.bytes_moved == total


def most_live() -> int:
    """The most bytes that arrays take on one device, those that share memory counted once."""
    buffers = {
        (shard.device, shard.data.unsafe_buffer_pointer()): shard.data.nbytes
        for array in jax.live_arrays()
        for shard in array.addressable_shards
    }
    devices = {device for device, _ in buffers}
    sums = [sum(n for (d, _), n in buffers.items() if d == device) for device in devices]
    return max(sums, default=0)


def test_memory_beside_the_states_is_bounded(monkeypatch):
    seen, write = [], transfers_module._write

    def watch(*arguments):
        result = write(*arguments)
        seen.append(most_live())
        return result

    (D, F) = nm.dims("d0=256 d1=512")
    before, after, _ = random_pair(0)
    spec = VariableSpec("v0", nm.Shape((D, F)), "float32", Sharding(), True, True)
    split = lambda dim: (dataclasses.replace(spec, sharding=Sharding.of({dim: ["a"]})),)
    before = dataclasses.replace(before, mesh=nm.Mesh(a=4), variables=split("d0"))
    after = dataclasses.replace(after, mesh=nm.Mesh(a=8), variables=split("d1"))
    values = {"v0": np.random.default_rng(0).normal(size=(256, 512)).astype(np.float32)}
    others = most_live()
    state = place(before, values)
    plan = nm.transfer(before, after, memory=2**14)
    monkeypatch.setattr(transfers_module, "_write", watch)
    moved = plan(state)
    assert same(moved.arrays["v0"], values["v0"])
    assert len(seen) > 100  # in pieces
    assert plan.peak_bytes == 256 * 512 * 4 * (1 / 4 + 1 / 8) + 2**14
    assert max(seen) - others <= plan.peak_bytes


def test_a_dtype_is_cast_where_that_sends_less():
    before, after, arrays = random_pair(3)
    narrow = tuple(dataclasses.replace(one, dtype="bfloat16") for one in after.variables)
    with pytest.raises(nm.NamedMeshError, match="cast=True"):
        nm.transfer(before, dataclasses.replace(after, variables=narrow))
    plan = nm.transfer(before, dataclasses.replace(after, variables=narrow), cast=True)
    assert plan.bytes_moved == nm.transfer(before, after).bytes_moved // 2
    state = place(before, arrays)
    moved = plan(state)
    for name, array in arrays.items():
        sizes = tuple(map(slice, array.shape))
        cast = array.astype(jax.numpy.bfloat16)
        assert same(np.asarray(moved.arrays[name])[sizes], cast)
    narrowed = dataclasses.replace(after, variables=narrow)
    back = nm.transfer(narrowed, before, cast=True)(moved)
    for name, array in arrays.items():
        sizes = tuple(map(slice, array.shape))
        wide = array.astype(jax.numpy.bfloat16).astype(np.float32)
        assert same(np.asarray(back.arrays[name])[sizes], wide)


def test_a_trained_state_goes_on_in_another_program():
    trainer, sampler = compiled("train", "mixed"), compiled("decode", "three")
    expected = values()
    state = trainer.place(expected)
    plan = nm.transfer(trainer, sampler)
    moved = plan(state)
    assert list(moved) == ["layer/w", "layer/scale"]  # slots stay behind
    assert all(same(moved[name], expected[name]) for name in moved)
    x = np.ones((12, 5), np.float32)
    _, y = sampler(moved, x)
    _, expected_y = sampler(sampler.place({name: expected[name] for name in moved}), x)
    assert same(y, expected_y)
    assert all(same(state[name], expected[name]) for name in state)  # it is still there


def test_donated_variables_are_gone_and_others_are_named():
    trainer, sampler = compiled("train", "mixed"), compiled("decode", "three")
    state = trainer.place(values())
    plan = nm.transfer(trainer, sampler)
    plan(state, donate=True)
    assert state.arrays["layer/w"].is_deleted() and not state.arrays["slots/layer/w"].is_deleted()
    with pytest.raises(
        nm.NamedMeshError,
        match="layer/w, layer/scale of this state were used",
    ):
        plan(state)
    with pytest.raises(nm.NamedMeshError, match="the state given to train is a dict"):
        plan(values())  # type: ignore[arg-type]
    other = compiled("train", "two").place(values())
    with pytest.raises(nm.NamedMeshError, match="layer/w"):
        plan(other)


def test_what_arrives_changed_is_noticed(monkeypatch):
    trainer, sampler = compiled("train", "mixed"), compiled("decode", "three")
    plan, cut = nm.transfer(trainer, sampler), transfers_module._cut
    flip = lambda *arguments: -cut(*arguments)
    monkeypatch.setattr(transfers_module, "_cut", flip)
    with pytest.raises(nm.NamedMeshError, match="layer/w, layer/scale did not arrive"):
        plan(trainer.place(values()))
    plan(trainer.place(values()), verify=False)


def test_programs_that_do_not_fit_are_refused():
    with pytest.raises(nm.NamedMeshError, match=r"slots/layer/w: .* is missing"):
        nm.transfer(compiled("decode", "one"), compiled("train", "one"))
    with pytest.raises(nm.NamedMeshError, match="transfer was given a dict"):
        nm.transfer({}, compiled("train", "one"))  # type: ignore[arg-type]
    with pytest.raises(nm.NamedMeshError, match="transfer was given a State"):
        nm.transfer(compiled("decode", "one"), compiled("decode", "one").init())  # type: ignore[arg-type]


def test_the_plan_in_words():
    (W,) = nm.dims("wide=65536")
    use = lambda: nm.sum(nm.param("w", [W], nm.constant_init(1.0)))
    program = nm.trace(use)
    before = nm.export(program, nm.Mesh(data=4, hosts=2), "", params="wide:data")
    after = nm.export(program, nm.Mesh(data=4, hosts=2), "")
    plan = nm.transfer(before, after)
    assert str(plan).splitlines() == PLANNED


PLANNED = """\
transfer from Mesh(data=4, hosts=2) to Mesh(data=4, hosts=2)
  variable  from                      to                   stays      within hosts  between hosts
  w         float32[wide=65536/data]  float32[wide=65536]  256.0 KiB  512.0 KiB     256.0 KiB
total: 512.0 KiB within hosts, 256.0 KiB between hosts; 256.0 KiB there already
busiest of 8 links: 192.0 KiB, device 0 to 1
memory: at most 256.3 MiB on a device, both states and 256.0 MiB for what is on its way
""".splitlines()


def test_restoring_reads_what_its_plan_says(tmp_path):
    trainer, reader = compiled("train", "mixed"), compiled("decode", "three")
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, trainer.place(values()))
    with Checkpoints(tmp_path) as checkpoints:
        plan = checkpoints.plan(reader)
    # Each variable is whole on the three devices together: every element is read once.
    read = {"layer/w": 5 * 7 * 4, "layer/scale": 5 * 2}
    assert {pair[0] for pair in plan.links} == {-1}
    assert plan.bytes_moved == plan.bytes_between_hosts == sum(read.values())
    whole = compiled("decode", "one")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.plan(whole).links == {(-1, 0): sum(read.values())}
    (W,) = nm.dims("wide=64")
    use = lambda: nm.sum(nm.param("w", [W], nm.constant_init(1.0)))
    step = nm.compile(use, mesh=nm.Mesh(data=4))  # a copy on every device
    with Checkpoints(tmp_path / "copies", keep=1) as checkpoints:
        checkpoints.save(1, step.init())
        assert checkpoints.plan(step).links == {(-1, 0): 256, (0, 1): 256, (0, 2): 256, (0, 3): 256}


def cast_program(dtype, mesh, layout=""):
    (m,) = nm.dims("m=8")

    def use():
        w = nm.param("w", [m], dtype=dtype, trainable=not dtype.startswith("float8"))
        return nm.cast(w, "float32") * 2

    return nm.compile(use, mesh=nm.Mesh.parse(mesh), layout=layout)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.filterwarnings("error")
def test_values_that_the_dtype_of_the_target_does_not_have_are_a_warning_that_names_them(dtype):
    before, after = cast_program("float32", "a=2", "m:a"), cast_program(dtype, "b=1")
    plan = nm.transfer(before, after, cast=True)
    values = np.array([1, 2, 3, np.inf, 0, -1, 4, 5], np.float32)
    plan(before.place({"w": values}))  # what was not finite before is no news
    values[6] = np.finfo(np.float32).max
    with pytest.warns(UserWarning, match="^w had finite values that the target's dtype does not"):
        state = plan(before.place({"w": values}))
    assert not np.isfinite(np.asarray(state["w"], np.float32)[6])


@pytest.mark.parametrize(
    ("text", "fix"),
    [("RESOURCE_EXHAUSTED: Out of memory", "smaller memory="), ("INTERNAL: lost", "test the dev")],
)
def test_a_transfer_that_fails_on_its_devices_says_what_to_do(monkeypatch, text, fix):
    def fail(*_):
        raise jax.errors.JaxRuntimeError(text)

    before, after = cast_program("float32", "a=2", "m:a"), cast_program("float32", "b=1")
    monkeypatch.setattr(transfers_module, "_write", fail)
    with pytest.raises(nm.NamedMeshError, match="the transfer failed on its devices") as error:
        nm.transfer(before, after)(before.init())
    assert fix in error.value.fix and "export" not in error.value.fix
    assert [*error.value.details] == [text]


def test_the_plan_of_a_checkpoint_that_does_not_fit_is_the_error_of_restoring_it(tmp_path):
    (m,) = nm.dims("m=8")
    saved = cast_program("float32", "a=1")
    more = nm.compile(lambda: nm.param("w", [m]) * nm.param("v", [m]), mesh=nm.Mesh(a=1))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, saved.init(seed=0))
        checkpoints.wait()
        for program in (more, cast_program("bfloat16", "a=1")):
            errors = []
            for what in (checkpoints.restore, checkpoints.plan):
                with pytest.raises(nm.NamedMeshError) as error:
                    what(program)
                errors.append((error.value.problem, error.value.details[:1], error.value.fix))
            assert errors[0] == errors[1]
        assert "nm.transfer(it, this, cast=True)" in errors[0][2]
        assert list(checkpoints.plan(more, missing="init").routes) == ["w"]
