"""python -m namedmesh.aot ARTIFACT [ARTIFACT ...] --target tpu-v3:32x32 [--json OUT]."""

import argparse
import sys

from namedmesh.cli.aot_command import add_arguments, run_aot

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m namedmesh.aot")
    add_arguments(parser)
    sys.exit(run_aot(parser.parse_args()))
