"""python -m namedmesh: the command line."""

import sys

from namedmesh.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
