"""python -m namedmesh: the command line."""

import sys

from namedmesh.command import main

if __name__ == "__main__":
    sys.exit(main())
