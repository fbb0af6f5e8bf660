"""The opcodes of HLO: which compute on one device, and which communicate."""

from __future__ import annotations

from namedmesh.audit.hlo.array_types import UnreadableHlo
from namedmesh.audit.hlo.module import Instruction

# What communicates between devices, or between a device and its host, by a plan's name for it.
COMMUNICATING = {
    "all-gather": "AllGather",
    "all-reduce": "AllReduce",
    "all-to-all": "AllToAll",
    "collective-broadcast": "CollectiveBroadcast",
    "collective-permute": "CollectivePermute",
    "collective-reduce": "CollectiveReduce",
    "infeed": "Infeed",
    "outfeed": "Outfeed",
    "ragged-all-to-all": "RaggedAllToAll",
    "recv": "Recv",
    "reduce-scatter": "ReduceScatter",
    "send": "Send",
}
# Everything else that XLA's list of opcodes has.
_LOCAL = frozenset(
    """
    abs acos acosh add add-dependency after-all and asin asinh async atan atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call
    cbrt ceil cholesky clamp compare complex concatenate conditional constant convert convolution
    copy cosh cosine count-leading-zeros divide domain dot dynamic-reshape dynamic-slice
    dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather
    get-dimension-size get-tuple-element imag iota is-finite log log-plus-one logistic map maximum
    minimum mulhi multiply negate not opt-barrier or pad parameter partition-id popcnt power
    ragged-dot real reduce reduce-precision reduce-window remainder replica-id reshape reverse rng
    rng-bit-generator rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scaled-dot
    scan scatter select select-and-scatter set-dimension-size shift-left shift-right-arithmetic
    shift-right-logical shuffle sign sine sinh slice sort sqrt stochastic-convert subtract tan tanh
    topk transpose triangular-solve tuple while xor
    """.split()  # noqa: SIM905 (as a literal it would take a line for each)
)
# Attributes that only communication has.
_TELLING = ("replica_groups", "source_target_pairs")
# Targets of custom calls that work on one device: linear algebra, sorting, random bits, layouts,
# and callbacks to the host's own process. A target that is not here counts as communication.
_LOCAL_TARGETS = (
    "AllocateBuffer",
    "ApproxTopK",
    "AssumeGatherIndicesInBound",
    "GatherScatterIndicesBitpacked",
    "Cholesky",
    "Eigh",
    "LayoutConstraint",
    "LuDecomposition",
    "MoveToDevice",
    "MoveToHost",
    "PadToStatic",
    "PartialReduce",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "Sharding",
    "SliceToDynamic",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "TopK",
    "X64Combine",
    "X64SplitHigh",
    "X64SplitLow",
    "annotate_device_placement",
    "dynamic_ducc_fft",
    "ducc_fft",
    "xla_buffer_python_cpu_callback",
    "xla_ffi_partitioned_python_cpu_callback",
    "xla_ffi_python_cpu_callback",
    "xla_ffi_python_gpu_callback",
    "xla_python_cpu_callback",
    "xla_python_gpu_callback",
)
_LOCAL_TARGET_PREFIXES = (
    "__cub$",
    "__cublas$",
    "__cudnn$",
    "__cusolver$",
    "__gpu$",
    "__onednn$",
    "__xla_cpu_runtime_",
    "blas_",
    "cu_threefry2x32",
    "cublas_",
    "cusolver_",
    "hip_threefry2x32",
    "hipblas_",
    "hipsolver_",
    "lapack_",
)


def classify(instruction: Instruction) -> str | None:
    """Say what an instruction communicates, by a plan's name for it."""
    opcode, ends = instruction.opcode, False
    base = opcode
    for suffix in ("-start", "-update", "-done"):
        if opcode.endswith(suffix):
            base, ends = opcode.removesuffix(suffix), suffix != "-start"
    if base in COMMUNICATING:
        return None if ends else COMMUNICATING[base]
    if base == "custom-call":
        return None if ends or _is_local_call(instruction) else "CustomCall"
    if base not in _LOCAL:
        raise UnreadableHlo(f"the opcode {opcode!r} is unknown, and it may communicate")
    telling = [name for name in _TELLING if name in instruction.attributes]
    if telling and not ends:
        raise UnreadableHlo(f"the opcode {opcode!r} has {telling[0]}, as only communication does")
    return None


def _is_local_call(instruction: Instruction) -> bool:
    """Whether a custom call is known to work on one device."""
    target = custom_call_target(instruction)
    return target in _LOCAL_TARGETS or target.startswith(_LOCAL_TARGET_PREFIXES)


def custom_call_target(instruction: Instruction) -> str:
    """Return what a custom call calls."""
    return instruction.attributes.get("custom_call_target", "").strip('"')
