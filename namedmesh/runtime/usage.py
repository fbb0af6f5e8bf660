"""Report: what a compiled step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class Report:
    """What a compiled step takes, by the compiler's own account.

    Attributes:
        compile_seconds: The time it took to compile.
        argument_bytes: Inputs and state, per device.
        output_bytes: Results and the next state, per device.
        temporary_bytes: What lives only within a step, per device.
        aliased_bytes: The part of the outputs that takes the place of arguments, per device.
        code_bytes: The program itself.

    Example:
        >>> from namedmesh.runtime import Report
        >>> report = Report(1.0, argument_bytes=100, output_bytes=60, temporary_bytes=30,
        ...                 aliased_bytes=50, code_bytes=7)
        >>> report.peak_bytes
        140
    """

    compile_seconds: float
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    aliased_bytes: int
    code_bytes: int

    @classmethod
    def of(cls, compiled: jax.stages.Compiled, seconds: float) -> Report:
        """The report of a compiled step.

        Args:
            compiled: The step.
            seconds: How long it took to compile.

        Returns:
            The report.
        """
        memory = compiled.memory_analysis()
        assert memory is not None, "CPU, GPU and TPU compilers all count memory"
        return cls(
            seconds,
            memory.argument_size_in_bytes,
            memory.output_size_in_bytes,
            memory.temp_size_in_bytes,
            memory.alias_size_in_bytes,
            memory.generated_code_size_in_bytes,
        )

    @property
    def peak_bytes(self) -> int:
        """Arguments, results and temporaries, with what is updated in place counted once."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes - self.aliased_bytes
