"""Instructions that place an argument have a name, so that what moves it can be found again."""

import namedmesh as nm

B, M = nm.dims("batch=8 model=4")


def test_placing_an_argument_belongs_to_the_op_that_gives_it():
    program = nm.trace(lambda x: nm.replicate(x) + 1, x=nm.spec([B, M]))
    mesh = nm.Mesh(data=4)
    (gather,) = nm.plan(program, mesh, "batch:data").collectives
    assert gather.producer == "placeholder.0"
    artifact = nm.export(program, mesh, "batch:data")
    assert f"nm.{gather.producer}/".encode() in artifact.step_module
