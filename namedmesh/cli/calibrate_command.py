"""The command `namedmesh calibrate`: measures devices, and writes a file for `namedmesh cost`."""

from __future__ import annotations

import argparse
import sys

from namedmesh.errors.errors import NamedMeshError
from namedmesh.files import write_file
from namedmesh.hardware.hardware import Hardware, write_hardware

CALIBRATE_EXAMPLES = """\
examples:
  products, memory, attention, launches and collectives of all devices here (minutes)
    namedmesh calibrate mine.yaml
    namedmesh cost model.py:train --mesh data=8 --layout batch:data --target mine.yaml
  of eight virtual CPU devices
    namedmesh calibrate cpus.yaml --devices 8
  of one GPU alone: without the links to the others
    CUDA_VISIBLE_DEVICES=0 namedmesh calibrate one.yaml
"""


def add_calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `namedmesh calibrate`."""
    add = parser.add_argument
    add("out", metavar="OUT", help="the YAML file to write, which --target and nm.cost take")
    add("--devices", type=int, help="how many virtual CPU devices to measure, without others")


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Measure the devices and write their figures."""
    if not arguments.out.endswith((".yaml", ".yml")):
        fix = f"name it {arguments.out}.yaml"
        raise NamedMeshError(f"{arguments.out!r} is not the name of a hardware file", fix=fix)
    import jax

    from namedmesh.calibration.calibrate import calibrate
    from namedmesh.processes.devices import use_cpu_devices

    if arguments.devices is not None:
        use_cpu_devices(arguments.devices)
    devices = jax.local_devices()
    measured, timings = calibrate(devices, lambda line: print(line, flush=True))
    head = f"# {len(devices)} x {devices[0].device_kind}, measured by namedmesh calibrate"
    notes = "".join(f"#   {one}\n" for one in timings)
    text = f"{head} (jax {jax.__version__}):\n{notes}{write_hardware(measured)}"
    write_file(arguments.out, text.encode(), "the file of the hardware")
    print(f"{Hardware.parse(arguments.out)!r}, in {arguments.out}", file=sys.stderr)
    return 0
