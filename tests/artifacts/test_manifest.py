"""Manifests: typed on both sides of JSON, and checked on the way in."""

import json

import pytest

import namedmesh as nm
from namedmesh.artifacts.description import OpRecord
from namedmesh.artifacts.manifest import Manifest, read_manifest, write_manifest
from namedmesh.dims.dimension import Shape
from namedmesh.dims.hop import Hop
from namedmesh.dims.sharding import Sharding
from namedmesh.errors.source import Source
from namedmesh.records.codec import InvalidRecordError
from namedmesh.records.collective import Collective
from namedmesh.runtime import TensorSpec, VariableSpec

B, M = nm.dims("batch=10 model=4")
X = TensorSpec("x", Shape([B, M]), "bfloat16", Sharding.of({"batch": ["data", "model"]}))
W = VariableSpec("w", Shape([M]), "float32", Sharding(), trainable=True, updated=False)
SUM = Collective(
    "AllReduce",
    ("data",),
    4,
    "float32",
    16,
    3,
    "y",
    "sum.2",
    "forward",
    Source("model.py", 7),
    devices=2,
    open_ended=True,
    hop=Hop(-1, 1, 1, axes=("data",)),
)
MANIFEST = Manifest(
    name="step",
    mesh=nm.Mesh(data=2, model=4, device_assignment=[7, 6, 5, 4, 3, 2, 1, 0]),
    layout="batch:data+model",
    params="",
    precision="high",
    inputs=(X,),
    groups={"batch": ("x",)},
    variables=(W,),
    outputs=(X, X, X),
    structure={"loss": 0, 3: (1, None, [2])},
    collectives=(SUM,),
    initial_collectives=(),
    ops={"sum.2": OpRecord(Source("model.py", 7), (X, X))},
    activation_bytes=12,
    flops=10**18,
    made_with={"namedmesh": "0.1"},
)


def changed_sum(**changes) -> dict:
    """The JSON of the collective with some fields changed."""
    return json.loads(json.dumps(write_manifest(MANIFEST)["collectives"][0])) | changes


def document(**changes) -> dict:
    """The manifest's JSON with some fields changed, or left out where they are ..."""
    fields = json.loads(json.dumps(write_manifest(MANIFEST))) | changes
    return {key: value for key, value in fields.items() if value is not ...}


def test_a_manifest_survives_json():
    again = read_manifest(document())
    assert again == MANIFEST
    assert again.mesh.device_assignment == (7, 6, 5, 4, 3, 2, 1, 0)
    assert isinstance(again.collectives[0], Collective) and again.collectives[0].total_bytes == 48
    assert again.collectives[0].total_wire_bytes == 48 and again.collectives[0].open_ended
    assert again.inputs[0].padded(again.mesh) == (16, 4)
    assert again.inputs[0].bytes_per_device(again.mesh) == 2 * 4 * 2
    assert again.ops["sum.2"].texts[0] == "x bfloat16[batch=10/data+model, model=4] at model.py:7"


def spec(**changes) -> dict:
    return {"name": "x", "shape": [["batch", 4]], "dtype": "float32", "sharding": {}} | changes


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"flops": ...}, ["flops is missing"]),
        ({"flops": 1.5}, ["flops is 1.5, expected a non-negative whole number"]),
        ({"inputs": [spec(shape=[["batch", 2**63]])]}, [
            f"inputs[0].shape[0] is {2**63}, expected at most {2**40}",
        ]),
        ({"flops": True}, ["flops is true, expected a non-negative whole number"]),
        ({"layout": None, "params": 3}, [
            "layout is null, expected text", "params is 3, expected text",
        ]),
        ({"mesh": {"axes": {"data": 2, "model": 4}, "device_assignment": [0, 1]}}, [
            "mesh: device_assignment does not place 8 devices once each: (0, 1)",
        ]),
        ({"mesh": []}, ["mesh is [], expected an object"]),
        (
            {"inputs": [
                spec(dtype="float33"),
                spec(dtype=""),
                spec(dtype="i4,i4"),
                spec(shape=[["batch", 4], ["batch", 4]]),
            ]},
            [
                "inputs[0]: 'float33' is not the name of a dtype",
                "inputs[1]: '' is not the name of a dtype",
                "inputs[2]: 'i4,i4' is not the name of a dtype",
                "inputs[3].shape: dimension batch appears twice in one shape: [batch=4, batch=4]",
            ],
        ),
        ({"inputs": [spec(sharding={"batch": ["expert"]})]}, [
            "inputs[0].sharding: Mesh(data=2, model=4) has no axis 'expert'",
        ]),
        ({"inputs": [spec(sharding={"seq": ["data"]})]}, [
            "inputs[0]: x has no dimension seq to shard: [batch=4]",
        ]),
        ({"structure": {"tuple": [0, 3]}}, [
            "structure.tuple[1] is 3, expected the number of one of 3 outputs",
        ]),
        (
            {"structure": {"set": []}},
            [
                'structure is {"set": []}, expected a number, null, '
                "or an object with one of dict, tuple, list, named",
            ],
        ),
        ({"structure": {"dict": [["a"]]}}, [
            'structure.dict[0] is ["a"], expected [key, structure]',
        ]),
        ({"structure": {"tuple": [0, 1, 1]}}, ["structure does not have each of 3 outputs once"]),
        ({"structure": {"named": ["a b", ["x"], []]}}, [
            'structure.named is ["a b", ["x"], []], '
            "expected the name, the fields and the items of a named tuple",
        ]),
        ({"groups": {"batch": ["y"]}}, [
            'groups.batch is ["y"], expected inputs that follow each other',
        ]),
        ({"variables": [spec(trainable=True, updated=True)]}, [
            "inputs and variables: 2 are named 'x'",
        ]),
        ({"outputs": [spec(sharding={"batch": ["data", "data"]})] * 3}, [
            f"outputs[{i}]: x is sharded twice over data" for i in range(3)
        ]),
        ({"mesh": {"axes": {"device_assignment": 4}, "device_assignment": None}}, [
            "mesh.axes: device_assignment is not the name of an axis",
        ]),
        ({"ops": {"sum.2": {"source": 7}}}, [
            "ops.sum.2.source is 7, expected file:line", "ops.sum.2.results is missing",
        ]),
        ({"collectives": [{}]}, [f"collectives[0].{name} is missing" for name in (
            "kind", "axes", "elements", "dtype", "bytes", "times",
            "tensor", "op", "phase", "source", "devices",
        )]),
        ({"collectives": [changed_sum(order=["model"], receivers=["data", "data"])]}, [
            'collectives[0].order is ["model"], expected its axes in some order',
            'collectives[0].receivers is ["data", "data"], expected its axes in some order',
        ]),
        ({"collectives": [changed_sum(reduction="sum")]}, [
            'collectives[0].reduction is "sum", expected one of add, and, max, min, mul, or',
        ]),
        ({"collectives": [write_manifest(MANIFEST)["collectives"][0] | {"hop": "1 from 2"}]}, [
            'collectives[0].hop is "1 from 2", expected a hop, such as '
            "'1-3 from -1 along space'",
        ]),
        ({"collectives": [write_manifest(MANIFEST)["collectives"][0] | {"open_ended": 1}]}, [
            "collectives[0].open_ended is 1, expected true or false",
        ]),
        ({"collectives": [write_manifest(MANIFEST)["collectives"][0] | {"devices": 4}]}, [
            "collectives[0].devices is 4, expected 2, the devices along data",
        ]),
    ],
)  # fmt: skip
def test_every_wrong_field_is_named(changes, problems):
    with pytest.raises(InvalidRecordError) as error:
        read_manifest(document(**changes))
    assert error.value.problems == problems


def test_an_exported_program_names_no_folder():
    program = nm.trace(lambda x: nm.sum(x, over=B), x=nm.spec([B, M]))
    artifact = nm.export(program, nm.Mesh(data=2), "batch:data")
    sources = [one.source for one in artifact.collectives]
    sources += [record.source for record in artifact.ops.values()]
    assert {source.file for source in sources} == {"test_manifest.py"}
    assert artifact.collectives[0].op in artifact.ops
