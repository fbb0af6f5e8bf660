"""python -m namedmesh.aot: the command `namedmesh aot`."""

import sys

from namedmesh.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["aot", *sys.argv[1:]]))
