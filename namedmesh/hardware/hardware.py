"""Hardware: what one kind of device computes, holds and sends in a second."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from namedmesh.errors.errors import NamedMeshError, check_text, did_you_mean
from namedmesh.hardware.links import Host, Network, Nodes


@dataclass(frozen=True, eq=False)
class Hardware:
    """One kind of device and its links.

    Attributes:
        name: What it is called.
        flops: Floating point operations a second of matrix products, by the dtype of operands;
            other dtypes count as float32.
        vector_flops: The same of everything else.
        memory_bytes: What a device's memory holds.
        memory_bandwidth: Bytes a second that a device reads and writes.
        network: How devices are connected.
        product_share: The share of `flops` that matrix products reach.
        kernel_share: The share of `vector_flops` that kernels reach in what they compute beside
            products.
        memory_share: The share of `memory_bandwidth` that ops reach.
        start: Seconds that an op takes before it computes.
        fuses_products: Whether the compiler makes operands of matrix products within them, and
            ends them in the elementwise ops that follow.
        fuses_relu: Whether it ends them in a relu that follows.
        merges_sums: Whether sums over the same dimensions that read the same run as one.
        rounds_products: Whether products round float32 operands to bfloat16 at default precision.
        repeats: What the compiler computes once for every reader rather than writing it to memory:
            "all" elementwise functions, "cheap" ones (no exponentials and the like), or "none".
        widens: Whether what is narrower than float32 is computed in it.
        kernels: Whether kernels are chosen where named ops offer them.
        shared: Whether all devices of a mesh share the figures above, as those of one host do.

    Example:
        >>> from namedmesh.hardware.hardware import Hardware
        >>> h200 = Hardware.parse("h200")
        >>> h200.flops["bfloat16"], h200.memory_bandwidth
        (989000000000000.0, 4800000000000.0)
    """

    name: str
    flops: Mapping[str, float]
    vector_flops: float
    memory_bytes: int
    memory_bandwidth: float
    network: Network
    product_share: float = 1.0
    kernel_share: float = 1.0
    memory_share: float = 1.0
    start: float = 0.0
    fuses_products: bool = False
    fuses_relu: bool = False
    merges_sums: bool = False
    rounds_products: bool = False
    repeats: str = "all"
    widens: bool = False
    kernels: bool = False
    shared: bool = False

    @classmethod
    def parse(cls, text: str | os.PathLike) -> Hardware:
        """Find hardware by name, or reads it from a file.

        Args:
            text: `tpu-v3` or another generation, `tpu-v3:4x4` for a slice of it, `h100`, `h200`,
                `a100`, `cpu`, or the path of a YAML file.

        Returns:
            The hardware.

        Raises:
            NamedMeshError: There is no such hardware, or the file does not describe any.

        Example:
            >>> from namedmesh.hardware.hardware import Hardware
            >>> Hardware.parse("tpu-v3:4x4").network.shape
            (4, 4)
        """
        if isinstance(text, os.PathLike) or str(text).endswith((".yaml", ".yml")):
            from namedmesh.hardware.hardware_file import read_hardware

            return cls(**read_hardware(text))
        name, colon, _ = check_text(text, "hardware", "tpu-v3").partition(":")
        if name in _GPUS and not colon:
            return _GPUS[name]
        if name == "cpu" and not colon:
            return _CPU
        if name.startswith("tpu-"):
            from namedmesh.hardware.tpus import find_tpu

            return cls(**find_tpu(text))
        raise NamedMeshError(
            f"there is no hardware {text!r}",
            fix=f"{did_you_mean(name, KNOWN)} (or give the path of a YAML file)",
        )

    def divide(self, devices: int) -> Hardware:
        """Return what one of so many devices has of what they share.

        Args:
            devices: How many devices the mesh has.

        Returns:
            This hardware, unless its figures are those of all devices together.
        """
        if not self.shared or devices == 1:
            return self
        return replace(
            self,
            flops={dtype: rate / devices for dtype, rate in self.flops.items()},
            vector_flops=self.vector_flops / devices,
            memory_bandwidth=self.memory_bandwidth / devices,
            start=self.start * devices,
            shared=False,
        )

    def product_flops(self, dtype: str, precision: str = "default") -> float:
        """Return the floating point operations a second of products of a dtype, at most.

        Args:
            dtype: The dtype of the operands.
            precision: `default`, or `high` or `highest`, at which float32 is more exact.

        Returns:
            The rate.
        """
        name = f"{dtype} {precision}"
        return self.flops.get(name) or self.flops.get(dtype) or self.flops["float32"]

    def __str__(self) -> str:
        return self.name


def _gpu(
    name: str, tera: Mapping[str, float], memory: float, bandwidth: float, links: tuple[float, ...]
) -> Hardware:
    """A GPU of NVIDIA in nodes of eight: TFLOP/s, GB, TB/s, and GB/s inside and across nodes."""
    inside, across = links
    return Hardware(
        name,
        {dtype: rate * 1e12 for dtype, rate in tera.items()},
        vector_flops=tera["float32 highest"] * 1e12,
        memory_bytes=int(memory * 1e9),
        memory_bandwidth=bandwidth * 1e12,
        network=Nodes(8, inside * 1e9, across * 1e9, 1e-6, 5e-6, 5e-6),
        product_share=0.82,  # fitted, like the next, to profiles of an H200
        kernel_share=0.056,
        memory_share=0.85,
        start=2e-6,
        fuses_relu=True,
        merges_sums=True,
        kernels=True,
    )


# NVIDIA's data sheets of the SXM modules, as https://glennklockwood.com/garden/processors/h100 and
# /A100 quote them: products in bfloat16 without sparsity, and float32 as TF32 or as it is. Inside a
# node NVLink, half of what is sold as bidirectional; across one InfiniBand port for each GPU, of
# 400 Gbit/s beside H100 and H200 (MLPerf's descriptions of systems) and of 200 beside A100. The
# last figure is from memory, and latencies are assumed.
_H100 = {"bfloat16": 989.0, "float16": 989.0, "float32": 494.5, "float32 highest": 67.0}
_A100 = {"bfloat16": 312.0, "float16": 312.0, "float32": 156.0, "float32 highest": 19.5}
_GPUS = {
    "h100": _gpu("h100", _H100, 80, 3.35, (450, 50)),
    "h200": _gpu("h200", _H100, 141, 4.8, (450, 50)),
    "a100": _gpu("a100", _A100, 80, 2.039, (300, 25)),
}
# Between processes: gloo over the loopback interface of a machine of two cores sent 1.1 GB/s in all
# in sums of 16 MiB over two and over four processes, and took 0.2 and 0.6 ms for sums of 4 bytes.
_CPU = Hardware(
    "cpu",
    {"float32": 60e9, "bfloat16": 20e9},
    vector_flops=6e9,
    memory_bytes=16 * 2**30,
    memory_bandwidth=12e9,
    network=Host(bandwidth=6e9, start=20e-6, across=1e9, across_start=4e-4),
    start=5e-6,
    repeats="none",
    widens=True,
    shared=True,
)
KNOWN = (*(f"tpu-{one}" for one in ("v2", "v3", "v4", "v5e", "v5p", "v6e")), *_GPUS, "cpu")
