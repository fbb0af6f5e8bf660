"""The stack, exported and compiled once for all tests of this folder."""

import pytest

import namedmesh as nm
from namedmesh.aot import compile_for
from tests.aot.stack import B, M, train


@pytest.fixture(scope="package")
def artifact():
    return nm.export(
        nm.trace(train, x=nm.spec([B, M])), nm.Mesh(data=2, model=4), "batch:data, hidden:model"
    )


@pytest.fixture(scope="package")
def found(artifact):
    return compile_for(artifact, "cpu:8", name="stack")
