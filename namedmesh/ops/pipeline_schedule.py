"""Schedules of pipelines: what each device does at each tick, how long it waits, what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from namedmesh.dims.dimension import Dimension
from namedmesh.ir.trace import current


@dataclass(frozen=True)
class Schedule:
    """Ticks at which every device does a forward unit, a backward unit, or both.

    Each device has a stage of every round. Forward, device d does its unit k at tick k + d. Units
    are ordered by groups of as many microbatches as there are devices, then by rounds. Backward it
    is the same the other way round, from the tick at which the first loss is known. All devices do
    the same kinds of unit at a tick, so that no branch differs between them. Ticks, units and
    devices are numbers, or tensors of them.
    """

    kind: str
    stages: Dimension
    batches: Dimension
    rounds: int = 1

    @property
    def period(self) -> int:
        """The ticks from the start of a microbatch to its loss: one for each stage."""
        return self.rounds * self.stages.size

    @property
    def units(self) -> int:
        """The forward units of a device; where rounds follow each other, groups are filled up."""
        missing = -self.batches.size % self.stages.size if self.rounds > 1 else 0
        return self.rounds * (self.batches.size + missing)

    @property
    def ticks(self) -> int:
        """The ticks with forward units, which are as many as those with backward units."""
        return self.units + self.stages.size - 1

    @property
    def warm_up(self) -> int:
        """The ticks before the first backward unit, and after the last forward unit."""
        return self.period - 1

    @property
    def slots(self) -> int:
        """The ticks whose inputs are kept: from the first unit of a microbatch to its last."""
        if self.kind == "gpipe":
            return self.ticks
        return min(2 * self.period - 1, self.ticks)

    def live(self, device: int) -> int:
        """Return how many inputs a device keeps at most: units done forward, and not yet back."""
        ahead = (self.rounds + 1) * self.stages.size - 1 - 2 * device
        return min(self.units, ahead)

    @property
    def length(self) -> int:
        """The time of a step if forward, backward and weight gradients each take one."""
        if self.kind != "zero_bubble":
            return 3 * self.ticks
        # A tick takes as long as the device with the most to do.
        ticks, devices = range(self.ticks + self.warm_up), range(self.stages.size)
        return sum(max(self.count_work(tick, one) for one in devices) for tick in ticks)

    def count_work(self, tick: int, device: int) -> int:
        """Count what a device does at a tick: forward, backward, and weight gradients."""
        units = (tick - device, self.backward_unit(tick, device), *self.weight_units(tick, device))
        return sum(map(self.exists, units))

    def note(self, size: int, saved: int = 0) -> None:
        """Note how long devices are idle and what they keep, given the bytes that enter a stage."""
        parts, unit = (3, "thirds of iterations") if saved else (1, "iterations")
        length = self.length * parts // 3
        idle = length - parts * self.rounds * self.batches.size
        rounds = f", {self.rounds} rounds" if self.rounds > 1 else ""
        share = f"idle in {idle} of {length} {unit} ({idle / length:.0%})"
        text = f"pipeline ({self.kind}), {self.stages}, {self.batches}{rounds}: {share}, "
        text += f"{self.slots} inputs of {size:,} bytes kept"
        text += f", {saved:,} bytes for weight gradients of each besides" if saved else ""
        current("pipeline").root.notes[text] = None

    def batch_of(self, unit: Any) -> Any:
        """Return the microbatch of a unit."""
        if self.rounds == 1:
            return unit
        return unit // self.period * self.stages.size + unit % self.stages.size

    def round_of(self, unit: Any) -> Any:
        """Return the round of a forward unit; of a backward unit, the rounds after its own."""
        return unit % self.period // self.stages.size

    def backward_unit(self, tick: Any, device: Any) -> Any:
        """Return the backward unit of a device at a tick."""
        return tick - self.warm_up - (self.stages.size - 1) + device

    def backward_tick(self, unit: Any, device: Any) -> Any:
        """Return when a device does a backward unit."""
        return unit + self.warm_up + self.stages.size - 1 - device

    def weight_units(self, tick: int, device: int) -> tuple[int, int]:
        """Return the units whose weight gradients a device computes at a tick, -1 for none.

        One follows each backward unit as late as the first device's does. At the end, devices that
        still have forward units do these instead, and those without backward units do two.
        """
        batches, delay = self.batches.size, 2 * (self.stages.size - 1)
        first, second = tick - delay, tick - delay
        if tick >= batches:
            first = tick - delay - device if tick - device >= batches else -1
        if tick < batches + delay - device:
            second = -1
        return max(first, -1), max(second, -1)

    def forward_tick(self, unit: Any, device: Any) -> Any:
        """Return when a device did the forward unit that a backward unit belongs to."""
        if self.rounds == 1:
            return unit + device
        return unit + (self.rounds - 1 - 2 * self.round_of(unit)) * self.stages.size + device

    def exists(self, unit: Any) -> Any:
        """Return whether there is such a unit; a device without one is idle."""
        exists = (unit >= 0) & (unit < self.units)
        if self.rounds * self.batches.size < self.units:
            exists = exists & (self.batch_of(unit) < self.batches.size)
        return exists

    def units_of_batches(self, number: int) -> list[int]:
        """Return the unit of each microbatch in a round."""
        size = self.stages.size
        groups = (divmod(batch, size) for batch in range(self.batches.size))
        return [group * self.period + number * size + i for group, i in groups]
