"""Instructions that place an argument have a name, so that what moves it can be found again."""

import re

import namedmesh as nm

B, M = nm.dims("batch=8 model=4")


def test_placing_an_argument_belongs_to_the_op_that_gives_it():
    program = nm.trace(lambda x: nm.replicate(x) + 1, x=nm.spec([B, M]))
    mesh = nm.Mesh(data=4)
    (gather,) = nm.plan(program, mesh, "batch:data").collectives
    assert gather.producer == "placeholder.0"
    artifact = nm.export(program, mesh, "batch:data")
    assert f"nm.{gather.producer}/".encode() in artifact.step_module


def test_placing_an_argument_of_a_body_belongs_to_the_loop():
    L = nm.Dimension("layer", 3)

    def layer(x, _):
        w = nm.param("w", [M], nm.constant_init(1.0))
        return x * w, None

    def step(x):
        y, _ = nm.scan(layer, x, over=L, stack=True)
        return nm.sum(y)

    mesh = nm.Mesh(data=4)
    program = nm.trace(step, x=nm.spec([B, M]))
    (gather,) = (
        one
        for one in nm.plan(program, mesh, "batch:data", params="model:data").collectives
        if one.kind == "AllGather"
    )
    artifact = nm.export(program, mesh, "batch:data", params="model:data")
    named = {*re.findall(rb"nm\.([a-z_]+\.[0-9]+)/", artifact.step_module)}
    assert gather.producer.encode() in named
    assert {one for one in named if one.startswith(b"placeholder")} == {
        b"placeholder.0",  # x
        b"placeholder.1",  # w
    }
