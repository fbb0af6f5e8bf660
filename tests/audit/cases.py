"""A planned collective, and the lines of HLO that it is audited against."""

import dataclasses

import namedmesh as nm
from namedmesh.audit.audit import audit
from namedmesh.errors.source import Source
from namedmesh.records.collective import Collective
from namedmesh.runtime import Audit
from tests.audit.hlo.text import module_of

MESH = nm.Mesh(data=2, model=4)
PLANNED = Collective(
    kind="AllReduce",
    axes=("model",),
    elements=32,
    dtype="float32",
    bytes=128,
    times=1,
    tensor="y",
    op="einsum.3",
    phase="forward",
    source=Source("model.py", 3),
    devices=4,
)
LINE = """
  %r = f32[4,8]{1,0} all-reduce(%p), replica_groups=[2,4]<=[8], to_apply=%add, \
metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}
"""
UNNAMED = LINE.replace(', metadata={op_name="jit(f)/namedmesh/nm.einsum.3/XlaDot"}', "")


def planned(**changes) -> Collective:
    return dataclasses.replace(PLANNED, **changes)


def audit_of(lines: str, *collectives: Collective, backend: str = "cpu", **options) -> Audit:
    """The audit of a module of these lines against planned collectives."""
    return audit(module_of(lines), MESH, collectives, backend=backend, **options)
