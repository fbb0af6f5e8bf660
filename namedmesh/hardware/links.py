"""Links between devices: how long a collective takes over a switch, between nodes, on a host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from namedmesh.dims.mesh import Mesh
from namedmesh.errors.errors import NamedMeshError
from namedmesh.records.collective import Collective, count_wire_bytes

# The bytes that one step sends along each set of axes, which decides where axes are laid.
Traffic = Mapping[tuple[str, ...], float]


class Network(ABC):
    """How devices of one kind are connected."""

    @abstractmethod
    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate how long a collective takes, once."""


@dataclass(frozen=True)
class Nodes(Network):
    """Nodes of devices behind a fast switch, with a slower network between nodes.

    Devices fill nodes in the order of the mesh, its last axis first. What goes to other nodes is
    first cut into as many shards as members of the group share a node, so that all of their links
    carry some. A mesh that says which hosts or slices it lies on has those for nodes.

    Attributes:
        devices: The devices of a node, where the mesh does not say.
        inside: Bytes a second that one device sends within its node.
        across: Bytes a second that one device sends to other nodes.
        inside_latency: Seconds of one message within a node.
        across_latency: Seconds of one message between nodes.
        start: Seconds before a collective sends anything.
    """

    devices: int
    inside: float
    across: float
    inside_latency: float
    across_latency: float
    start: float

    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate how long a collective takes, once."""
        near = self._members_of_a_node(one, mesh)
        nodes = -(-one.devices // near)
        messages = 2 if one.kind == "AllReduce" else 1
        if one.kind == "CollectivePermute":
            far = nodes > 1 if mesh.hosts == 1 else max(one.host_bytes, one.slice_bytes) > 0
            bandwidth = self.across if far else self.inside
            latency = self.across_latency if far else self.inside_latency
            return self.start + latency + one.bytes / bandwidth
        if one.kind == "AllToAll":
            within = one.bytes * (near - 1) / one.devices / self.inside
            beyond = one.bytes * (one.devices - near) / one.devices / self.across
            latency = self.across_latency if nodes > 1 else self.inside_latency
            return self.start + latency + max(within, beyond)
        within = count_wire_bytes(one.kind, one.bytes, near) / self.inside
        beyond = count_wire_bytes(one.kind, one.bytes // near, nodes) / self.across
        latency = (near - 1) * self.inside_latency + (nodes - 1) * self.across_latency
        return self.start + messages * latency + within + beyond

    def _members_of_a_node(self, one: Collective, mesh: Mesh) -> int:
        """How many devices of a group are in one node."""
        if mesh.hosts > 1:
            return mesh.members_of_block(one.axes, mesh.slices if mesh.slices > 1 else mesh.hosts)
        members, below = 1, 1  # devices of the axes behind, which lie next to each other
        for axis, size in reversed(mesh.axes.items()):
            if axis in one.axes:
                members *= min(size, max(1, self.devices // below))
            below *= size
        return min(members, one.devices)


@dataclass(frozen=True)
class Host(Network):
    """Devices that share one host's memory and cores: a collective is copies and a rendezvous.

    Where a mesh has several hosts, they are processes of that host, and send to each other through
    its network stack.

    Attributes:
        bandwidth: Bytes a second that all devices together copy.
        start: Seconds until the devices of a collective have met, for each of them.
        across: Bytes a second that all processes together send to each other; 0 if not known.
        across_start: Seconds that a collective between processes takes besides.
    """

    bandwidth: float
    start: float
    across: float = 0.0
    across_start: float = 0.0

    def seconds(self, one: Collective, mesh: Mesh, traffic: Traffic) -> float:
        """Estimate how long a collective takes, once."""
        # Every device reads what it gets and writes it; a sum reads every part.
        moved = 2 * max(one.wire_bytes, one.bytes) * mesh.devices
        seconds = self.start * mesh.devices + moved / self.bandwidth
        if one.host_bytes:
            seconds += self.across_start
            seconds += one.host_bytes * mesh.hosts / check_across(self.across, mesh, "hosts")
        return seconds


def check_across(rate: float, mesh: Mesh, what: str) -> float:
    """Return what a network sends between hosts or slices in a second, or raises."""
    if not rate:
        raise NamedMeshError(
            f"the hardware does not say how fast {what} send to each other",
            f"mesh: {mesh}",
            fix=f"give the network its rate, e.g. across: 12e9, or leave {what} out of the mesh",
        )
    return rate
