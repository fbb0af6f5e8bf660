"""Every chip that namedmesh knows: to add one, add an entry to CHIPS, and touch nothing else.

nm.cost, nm.search and nm.report read rates and links here, namedmesh.aot the shapes of TPU slices
and what describes a GPU to XLA's compiler, and namedmesh.training the peak of the devices it runs
on. Figures are those of a whole chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from namedmesh.ir.tensor import FLOATS8

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Multiprocessors:
    """The multiprocessors of a GPU, as XLA's compiler is told about them."""

    kind: str  # jax's `device_kind`
    count: int
    capability: tuple[int, int]  # the CUDA compute capability
    memory: int  # bytes that a program may use
    cache: int  # bytes of the second level
    clock: float  # GHz
    product_clock: float  # GHz, of matrix products
    products: int  # of bfloat16, by each of four units in a clock
    shared: int = 233472  # bytes of shared memory of each
    lanes: int = 128  # of float32 in each


@dataclass(frozen=True, kw_only=True, eq=False)
class Chip:
    """Published figures of one chip.

    Attributes:
        family: `tpu`, `gpu` or `cpu`: decides on the network, the compiler and assumed latencies.
        kinds: What jax's `device_kind` contains for its devices, in lower case.
        devices: How many devices jax lists for a chip, which share it equally.
        tera: TFLOP/s of dense products by dtype, or by dtype and precision (`float32 highest`).
        vector_tera: TFLOP/s of everything else.
        memory: Bytes of memory.
        bandwidth: Bytes a second that the chip reads and writes there.
        link: Bytes a second over one link of a torus in one direction, or to others in a node.
        across: Bytes a second to other slices or nodes.
        narrow_tera: TFLOP/s of dense products in 8 bits (float8, or int8 of TPUs before v7x), if
            that is more than in bfloat16.
        boards: TFLOP/s in bfloat16 of boards with other clocks, by what their kind contains.
        node: The GPUs that NVLink joins.
        host: The GPUs of one host.
        clock: Cycles a second, if known, for TPUs as all below.
        dimensions: The dimensions of the torus.
        ring: The size at which a dimension of a slice closes to a ring.
        closed_exchange: Whether AllToAlls take the links that close a ring.
        cubes: Whether every multiple of that size closes too.
        megacore: Whether the cores are one device, which the compiler has to be asked for.
        compiler_name: The compiler's own name of the generation, if it has another.
        multiprocessors: Those of a GPU that can be compiled for where there is none.
        description: The text of one's own GPU for XLA's compiler.
    """

    family: str
    kinds: tuple[str, ...]
    tera: Mapping[str, float]
    vector_tera: float
    memory: int
    bandwidth: float
    link: float
    across: float
    devices: int = 1
    narrow_tera: float = 0.0
    boards: Mapping[str, float] = field(default_factory=dict)
    node: int = 8
    host: int = 8
    clock: float | None = None
    dimensions: int = 0
    ring: int = 0
    closed_exchange: bool = True
    cubes: bool = False
    megacore: bool = False
    compiler_name: str = ""
    multiprocessors: Multiprocessors | None = None
    description: str = ""

    @property
    def rates(self) -> dict[str, float]:
        """TFLOP/s of dense products by dtype, with those of float8 where there are units for it."""
        has_float8 = self.narrow_tera and (self.family == "gpu" or "tpu7x" in self.kinds)
        return {**self.tera, **dict.fromkeys(FLOATS8 if has_float8 else (), self.narrow_tera)}


def _tpu(tera: float, **figures) -> Chip:
    """Make a TPU of its TFLOP/s in bfloat16, of whose products 1, 3 or 6 make one of float32."""
    passes = {"": 1, " default": 1, " high": 3, " highest": 6}
    rates = {f"float32{precision}": tera / count for precision, count in passes.items()}
    # Eight by 128 lanes in each of a few units, against two to eight 128 by 128 arrays.
    return Chip(family="tpu", tera={"bfloat16": tera, **rates}, vector_tera=tera / 32, **figures)


# TPUs. FLOP/s and HBM: https://cloud.google.com/tpu/docs/v3 and the pages of v4, v5e, v5p, v6e and
# tpu7x, which has the bandwidth of links and between slices too (1,200 GB/s in both directions over
# six links, and 100 Gbit/s) and compares them with v5p's and v6e's.
# Of v2 there is no such page any more: 180 TFLOP/s of four chips (Google, 2017), 700 GB/s and half
# of v3's HBM (Hot Chips 2020).
# Links: of v5e, v5p and v6e those pages have the bandwidth of a chip in both directions; of v3 and
# v4 that of all-reduces in a Pod, which divided by its chips and their links gives 83 and 45 GB/s
# (and the other page's figure for v5e and v6e). The scaling book (https://jax-ml.github.io/
# scaling-book/tpus) has 100 and 45. Those of v2, 496 Gbit/s in Jouppi et al., "A Domain-Specific
# Supercomputer for Training Deep Neural Networks", are from memory.
# AllToAll on v3: the paper measured 9 times the time on 2,048 cores as on 16, and 3.75 times that
# on 128. Lines of 32 chips beside lines of 4 and of 8 give 8 and 4, closed rings 4 and 2; so the
# links that close a ring are not counted there (v2 is taken to be alike).
# Between slices: of v5e and v6e those pages have 6.4 and 25.6 Tbit/s for the 256 chips of a Pod; of
# the others a host's ports are from memory, 100 Gbit/s for four chips of v2 and v3, and 200 for
# four of v4 and v5p.
# Devices: jax lists each core of v2, v3 and v7x (two chiplets with HBM of their own), and each chip
# of the others; a v4 has two cores, for
# which compilation ahead of time needs chip_config_name="megacore" (as MaxText does it).
# GPUs. NVIDIA's figures of the SXM modules, as https://glennklockwood.com/garden/processors/h100
# and /A100 quote them: products in bfloat16 without sparsity, float32 as TF32 or as it is. Boards
# of the H100, PCIe and NVL: NVIDIA's data sheet. Inside a node NVLink, half of what is sold as
# bidirectional; across one InfiniBand port for each GPU, of 400 Gbit/s beside H100 and H200
# (MLPerf's descriptions of systems) and of 200 beside A100, which is from memory.
# Products in 8 bits: the same pages and data sheets, 2 times bfloat16 wherever there are any.
# Trainium (16 chips of two NeuronCores and 800 Gbit/s of EFA in a trn1.32xlarge), V100, MI300X and
# GB300: data sheets, from memory.
# CPU. Measured on a machine of two cores, all of whose devices share these figures. Between
# processes: gloo over the loopback interface sent 1.1 GB/s in all in sums of 16 MiB over two and
# over four processes.
# Blackwell: NVIDIA's data sheets of HGX B200 and B300 and of GB200 NVL72, whose 72 GPUs share one
# NVLink domain; a port for each GPU, of 400 Gbit/s, 800 beside B300.
# Multiprocessors: the texts that XLA keeps of GPUs (xla/backends/gpu/target_config/specs), where
# units of matrix products and their clock give the published rates.
_HOPPER = {"bfloat16": 989.4, "float16": 989.4, "float32": 494.7, "float32 highest": 66.9}
_AMPERE = {"bfloat16": 312.0, "float16": 312.0, "float32": 156.0, "float32 highest": 19.5}


def _blackwell(tera: float, vector_tera: float, **figures) -> Chip:
    """Make a Blackwell GPU of its TFLOP/s in bfloat16 and in float32 without tensor cores."""
    rates = {"bfloat16": tera, "float16": tera, "float32": tera / 2, "float32 highest": vector_tera}
    return Chip(
        family="gpu", tera=rates, vector_tera=vector_tera, link=900e9, narrow_tera=2 * tera,
        **figures,
    )  # fmt: skip


def _hopper(**figures) -> Multiprocessors:
    """Describe the multiprocessors of a Hopper GPU."""
    return Multiprocessors(
        count=132, capability=(9, 0), cache=52428800, clock=1.98, product_clock=1.8295201,
        products=512, **figures,
    )  # fmt: skip


CHIPS = {
    "tpu-v2": _tpu(
        45, kinds=("tpu v2",), devices=2, memory=16 * GIB, bandwidth=700e9,
        link=62e9, across=3.125e9, clock=700e6, dimensions=2, ring=16,
        closed_exchange=False,
    ),
    "tpu-v3": _tpu(
        123, kinds=("tpu v3",), devices=2, memory=32 * GIB, bandwidth=900e9,
        link=83e9, across=3.125e9, clock=940e6, dimensions=2, ring=32,
        closed_exchange=False,
    ),
    "tpu-v4": _tpu(
        275, kinds=("tpu v4",), memory=32 * GIB, bandwidth=1200e9,
        link=45e9, across=6.25e9, clock=1050e6, dimensions=3, ring=4, cubes=True, megacore=True,
    ),
    "tpu-v5e": _tpu(
        197, kinds=("tpu v5 lite", "tpu v5e"), memory=16 * GIB, bandwidth=819e9,
        link=50e9, across=3.125e9, clock=1500e6, dimensions=2, ring=16, narrow_tera=394,
    ),
    "tpu-v5p": _tpu(
        459, kinds=("tpu v5p", "tpu v5"), memory=95 * GIB, bandwidth=2765e9,
        link=100e9, across=6.25e9, clock=1750e6, dimensions=3, ring=4, cubes=True, narrow_tera=918,
    ),
    "tpu-v6e": _tpu(
        918, kinds=("tpu v6 lite", "tpu v6e"), memory=32 * GIB, bandwidth=1638e9,
        link=100e9, across=12.5e9, dimensions=2, ring=16, narrow_tera=1836,
    ),
    "tpu-v7x": _tpu(
        2307, kinds=("tpu7x", "tpu v7x"), devices=2, memory=192 * GIB, bandwidth=7380e9,
        link=100e9, across=12.5e9, dimensions=3, ring=4, cubes=True, compiler_name="tpu7x",
        narrow_tera=4614,
    ),
    "h100": Chip(
        family="gpu", kinds=("h100",), tera=_HOPPER, vector_tera=66.9, memory=80 * 10**9,
        bandwidth=3.35e12, link=450e9, across=50e9, boards={"h100 pcie": 756, "h100 nvl": 835},
        narrow_tera=1978.9,
        multiprocessors=_hopper(kind="NVIDIA H100 80GB HBM3", memory=84942979072),
    ),
    "h200": Chip(
        family="gpu", kinds=("h200",), tera=_HOPPER, vector_tera=66.9, memory=141 * 10**9,
        bandwidth=4.8e12, link=450e9, across=50e9, narrow_tera=1978.9,
        multiprocessors=_hopper(kind="NVIDIA H200", memory=151397597184),
    ),
    "a100": Chip(
        family="gpu", kinds=("a100",), tera=_AMPERE, vector_tera=19.5, memory=80 * 10**9,
        bandwidth=2.039e12, link=300e9, across=25e9,
        multiprocessors=Multiprocessors(
            kind="NVIDIA A100-SXM4-80GB", count=108, capability=(8, 0), memory=85100068864,
            cache=41943040, clock=1.41, product_clock=1.41, products=256, shared=167936, lanes=64,
        ),
    ),
    "trn1": Chip(
        family="gpu", kinds=(), tera={"bfloat16": 190.0, "float16": 190.0, "float32": 47.5},
        vector_tera=5.9, memory=32 * GIB, bandwidth=820e9, devices=2, link=96e9, across=3.1e9,
        node=32, host=32,
    ),
    "v100": Chip(
        family="gpu", kinds=("v100",), tera={"bfloat16": 125.0, "float16": 125.0, "float32": 15.7},
        vector_tera=15.7, memory=32 * GIB, bandwidth=900e9, link=150e9, across=12.5e9,
    ),
    "mi300x": Chip(
        family="gpu", kinds=("mi300x",), vector_tera=163.4, memory=192 * 10**9, bandwidth=5.3e12,
        tera={"bfloat16": 1307.4, "float16": 1307.4, "float32": 653.7}, narrow_tera=2614.9,
        link=448e9, across=50e9,
    ),
    "b200": _blackwell(
        2250, 75, kinds=("nvidia b200",), memory=180 * 10**9, bandwidth=7.672e12, across=50e9,
        multiprocessors=Multiprocessors(
            kind="NVIDIA B200", count=148, capability=(10, 0), memory=191514411008,
            cache=132644864, clock=1.965, product_clock=1.8353101, products=1024,
        ),
    ),
    "gb200": _blackwell(
        2500, 80, kinds=("gb200",), memory=186 * 10**9, bandwidth=7.928e12, across=50e9,
        node=72, host=4,
        multiprocessors=Multiprocessors(
            kind="NVIDIA GB200", count=152, capability=(10, 0), memory=197897748480,
            cache=135528448, clock=2.062, product_clock=1.9259081, products=1024,
        ),
    ),
    "gb300": _blackwell(
        2500, 80, kinds=("gb300",), memory=288 * 10**9, bandwidth=8e12, across=100e9,
        node=72, host=4,
    ),
    "b300": _blackwell(
        2250, 75, kinds=("b300",), memory=288 * 10**9, bandwidth=7.936e12, across=100e9,
        multiprocessors=Multiprocessors(
            kind="NVIDIA B300", count=158, capability=(10, 3), memory=297021865984,
            cache=135528448, clock=1.965, product_clock=1.8353101, products=1024,
        ),
    ),
    "cpu": Chip(
        family="cpu", kinds=(), tera={"float32": 0.06, "bfloat16": 0.02}, vector_tera=0.006,
        memory=16 * GIB, bandwidth=12e9, link=6e9, across=1e9,
    ),
}  # fmt: skip
# TPU generations, as a target calls them.
TPUS = {name.removeprefix("tpu-"): chip for name, chip in CHIPS.items() if chip.family == "tpu"}
GPUS = {name: chip for name, chip in CHIPS.items() if chip.multiprocessors}


def list_peak_flops() -> dict[str, float]:
    """Return dense bfloat16 FLOP/s of one device by what jax's kind of it contains."""
    peaks = {}
    for chip in CHIPS.values():
        peaks |= dict.fromkeys(chip.kinds, chip.tera["bfloat16"] / chip.devices)
        peaks |= chip.boards
    # Longer texts first: "tpu v5 lite" contains "tpu v5".
    return {kind: peaks[kind] * 1e12 for kind in sorted(peaks, key=lambda kind: (-len(kind), kind))}
