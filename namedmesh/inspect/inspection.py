"""Inspection: a compiled step of JAX in the terms of a plan."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.audit.hlo.module import Module
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import check_path, write_file
from namedmesh.inspect.findings import StepFinding
from namedmesh.planning.communication import Communication
from namedmesh.records.collective import Collective
from namedmesh.records.plan import PlanRecord
from namedmesh.records.tensor import TensorRecord

_LAYOUT = "as compiled"  # shardings are those of the step, not of a layout


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Communication):
    """A compiled step: what it communicates and for which line, its arguments, memory and FLOPs.

    Attributes:
        name: The name of the function.
        mesh: The devices, by the names of the step's own mesh.
        collectives: Every communication of a step, in the order of the compiled code.
        tensor_rows: The arguments of the step with their shardings.
        memory: The bytes of one device by what they hold; empty if the compiler did not count them.
        flops: The floating point operations of matrix products and convolutions, on all devices.
        target: What the step is compiled for, if that is not here.
        notes: What the compiled code has besides.
        findings: What the step sends or holds in vain, the most bytes first.
        module: The compiled module.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import namedmesh as nm
        >>> seen = nm.inspect(lambda x, w: jnp.tanh(x @ w), jnp.ones([4, 8]), jnp.ones([8, 8]))
        >>> seen.flops, seen.collectives
        (512.0, ())
    """

    name: str
    mesh: Mesh
    collectives: tuple[Collective, ...]
    tensor_rows: tuple[TensorRecord, ...]
    memory: Mapping[str, int]
    flops: float
    module: Module
    target: str = ""
    notes: tuple[str, ...] = ()
    findings: tuple[StepFinding, ...] = ()

    @property
    def record(self) -> PlanRecord:
        """The step in the form that files have and `nm.diff` compares."""
        return PlanRecord(
            origin="plan",
            program=self.name,
            mesh=self.mesh.to_json(),
            layout=_LAYOUT,
            params=_LAYOUT,
            flops=self.flops,
            tensors=self.tensor_rows,
            collectives=self.collectives,
            memory=sum(self.memory.values()) if self.memory else None,
            notes=self.notes,
            warnings=tuple(map(str, self.findings)),
        )

    def save(self, path: str | os.PathLike[str], *, lines: bool = True) -> None:
        """Write the step as JSON, for `nm.diff`, `nm.load_plan` and golden files.

        Args:
            path: The file to write.
            lines: Whether sources have line numbers, which edits elsewhere change.
        """
        self.record.save(path, lines=lines)

    def report(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the step as one HTML page: what notebooks show, and the findings.

        Args:
            path: The file to write.
            **options: None; plans have some.
        """
        if options:
            problem = f"the page of a compiled step has no option {next(iter(options))!r}"
            raise NamedMeshError(problem, fix="give the path alone")
        title = html.escape(self._describe()[0])
        style = "body { font-family: sans-serif; margin: 2em } td, th { padding: 0 1em 0 0 }"
        head = (
            f'<!doctype html>\n<meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        )
        name = check_path(path, "the file of the report")
        write_file(name, f"{head}\n{self._repr_html_()}\n".encode(), "the report")

    def find_layout(self, **sizes: int) -> str:
        """Return the layout in which a program of named dimensions would have these shardings.

        Args:
            **sizes: The size of each dimension by the name that it is to have, such as `hidden=64`.

        Returns:
            The text that `nm.plan` takes, of the dimensions that some argument splits.

        Raises:
            NamedMeshError: Two dimensions have one size, or arguments split one dimension over
                different axes, or over axes that are not known.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> import namedmesh as nm
            >>> nm.inspect(jnp.sum, jnp.ones([4, 8])).find_layout(batch=4, model=8)
            ''
        """
        names = {str(size): name for name, size in sizes.items()}
        if len(names) < len(sizes):
            fix = "inspect the step with sizes that all differ"
            raise NamedMeshError(f"two of the dimensions have one size: {sizes}", fix=fix)
        found: dict[str, dict[str, str]] = {}
        for one in self.tensor_rows:
            for size, axes in re.findall(r"(\d+)/([^,\]]+)", one.place):
                if size in names:
                    found.setdefault(names[size], {}).setdefault(axes, f"{one.tensor} {one.place}")
        for name, places in found.items():
            if len(places) > 1 or "?" in places:
                problem = f"no one layout has {name} as the arguments of {self.name} do"
                fix = f"leave {name} out, or split it over the same axes everywhere"
                raise NamedMeshError(problem, *places.values(), fix=fix)
        return ", ".join(f"{name}:{next(iter(found[name]))}" for name in sizes if name in found)

    def _phases(self) -> dict[str, Sequence[Collective]]:
        return {name: ones for name, ones in super()._phases().items() if ones}

    def _describe(self) -> tuple[str, list[str]]:
        on = f" for {self.target}" if self.target else ""
        facts = [f"{self.flops:.4g} FLOPs on {self.mesh.devices} devices"] if self.flops else []
        if self.memory:
            sizes = (f"{human(size)} {name}" for name, size in self.memory.items() if size)
            total = human(sum(self.memory.values()))
            facts.append(f"{total} of memory on each device: {', '.join(sizes)}")
        facts += [] if self.collectives else ["it communicates nothing"]
        warned = [f"finding: {one}" for one in self.findings]
        return f"{self.name} on {self.mesh}{on}, as compiled", [*facts, *self.notes, *warned]
