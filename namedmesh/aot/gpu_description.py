"""The description of a GPU that XLA's compiler reads where there is none."""

from __future__ import annotations

from namedmesh.hardware.chips import Chip

# XLA numbers element types: 8-bit integers and floats, 16-bit floats, float32 and float64.
_BYTES, _HALVES, _FLOAT, _DOUBLE = (2, 6, 19, 20, 23, 24, 25, 28, 29, 33), (10, 16), 11, 12
_INTEGERS = (4, 8)
_LIMITS = """
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 device_address_bits: 64 ecc_enabled: true
  device_vendor: "NVIDIA Corporation" driver_version: "13.0.0" runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
"""


def describe_gpu(chip: Chip) -> str:
    """Describe a GPU as a GpuTargetConfigProto in text."""
    if chip.description:
        return chip.description
    own = chip.multiprocessors
    assert own is not None, "a target is one of GPUS"
    major, minor = own.capability
    accelerated = "feature_extension: ACCELERATED_FEATURES" if major >= 9 and not minor else ""
    products = {
        **dict.fromkeys(_BYTES, 2 * own.products),
        **dict.fromkeys(_HALVES, own.products),
        _FLOAT: own.products // 2,
    }
    scalars = {
        **dict.fromkeys((*_INTEGERS, _DOUBLE), own.lanes // 2),
        **dict.fromkeys((*_HALVES, _FLOAT), own.lanes),
    }
    return f"""
gpu_device_info {{ {_LIMITS}
  name: "{own.kind}" core_count: {own.count} fpus_per_core: {own.lanes}
  clock_rate_ghz: {own.clock} memory_bandwidth: {chip.bandwidth:.0f}
  device_memory_size: {own.memory} l2_cache_size: {own.cache} pcie_bandwidth: 34359738368
  shared_memory_per_core: {own.shared} shared_memory_per_block_optin: {own.shared - 1024}
  cuda_compute_capability {{ major: {major} minor: {minor} {accelerated} }}
  scalar_unit_description {{ {_rates(scalars, own.clock, "units_per_core: {} ops_per_clock: 1")} }}
  matrix_unit_description {{
    {_rates(products, own.product_clock, "units_per_core: 4 ops_per_clock: {}")}
  }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{own.kind}"
"""


def _rates(rates: dict[int, int], clock: float, form: str) -> str:
    """Write the rates of element types."""
    return " ".join(
        f"rate_infos {{ key: {key} value {{ clock_rate_ghz: {clock} {form.format(rate)} }} }}"
        for key, rate in rates.items()
    )
