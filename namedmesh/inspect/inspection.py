"""Inspection: a compiled step of JAX in the terms of a plan."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from namedmesh.audit.hlo.communication import CompiledCollective
from namedmesh.audit.hlo.module import Module
from namedmesh.dims.mesh import Mesh
from namedmesh.display.text import human
from namedmesh.errors.errors import NamedMeshError
from namedmesh.hardware.hardware import Hardware
from namedmesh.hardware.topology import Target
from namedmesh.inspect.findings import StepFinding
from namedmesh.planning.communication import Communication
from namedmesh.records.collective import Collective
from namedmesh.records.plan import AS_COMPILED, PlanRecord
from namedmesh.records.tensor import TensorRecord
from namedmesh.schedule.reading import read_schedule
from namedmesh.schedule.timeline import Timeline


@dataclass(frozen=True, eq=False, repr=False)
class Inspection(Communication):
    """A compiled step: what it communicates and for which line, its arguments, memory and FLOPs.

    Attributes:
        name: The name of the function.
        mesh: The devices, by the names of the step's own mesh.
        collectives: Every communication of a step, in the order of the compiled code.
        compiled: What the compiled code has of each of them.
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
    compiled: tuple[CompiledCollective, ...]
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
            layout=AS_COMPILED,
            params=AS_COMPILED,
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

    def to_json(self) -> dict[str, Any]:
        """Return values that JSON has: what `save` writes, and the findings by their parts."""
        found = [{**vars(one), "source": str(one.source)} for one in self.findings]
        return {**super().to_json(), "findings": found}

    @property
    def hardware(self) -> Hardware:
        """The hardware that the step is compiled for."""
        return Hardware.parse("cpu" if self.target[:3] in ("", "cpu") else self.target)

    def cost(self, target: str | os.PathLike[str] | Hardware | None = None) -> Timeline:
        """Estimate how long a step takes on some hardware, in the order that it is compiled in.

        Code that is compiled for CPUs sends nothing while it computes, and computes what is
        bfloat16 as float32: for what a GPU or TPU hides, give `nm.inspect` the target too.

        Args:
            target: What `nm.cost` takes; by default what the step is compiled for.

        Returns:
            What runs and what waits, op by op and collective by collective.

        Raises:
            NamedMeshError: There is no such hardware, it has other devices, or the text is not
                that of scheduled code.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> import namedmesh as nm
            >>> seen = nm.inspect(lambda x: jnp.tanh(x @ x), jnp.ones([64, 64]))
            >>> seen.cost("h100").seconds < seen.cost("cpu").seconds
            True
        """
        hardware = self.hardware if target is None else target
        hardware = hardware if isinstance(hardware, Hardware) else Hardware.parse(hardware)
        if not self.module.scheduled:
            fix = "give the module that the compiler ends with, ..after_optimizations.txt of XLA"
            raise NamedMeshError(
                f"{self.name} is not scheduled, so nothing tells its time", fix=fix
            )
        if self.mesh.devices > 1:
            hardware.network.count_blocks(self.mesh)  # raises if it has other devices
        pairs, own = zip(self.compiled, self.collectives, strict=True), str(hardware) == self.target
        clock = Target.parse(self.target).chip.clock if own else None  # of what counts cycles
        share = hardware.divide(self.mesh.devices)
        return read_schedule(self.module, pairs, self.mesh, share, clock)

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
        alike: dict[Any, list[StepFinding]] = {}  # those of one line, the most bytes first
        for one in self.findings:
            alike.setdefault((one.kind, one.source, one.source.line or one), []).append(one)
        warned = [
            f"finding: {first}" + (f" ({len(rest)} more of this kind at this line)" if rest else "")
            for first, *rest in alike.values()
        ]
        return f"{self.name} on {self.mesh}{on}, as compiled", [*facts, *self.notes, *warned]
