"""Lowering: from a plan to StableHLO, by TensorFlow."""

from namedmesh.ir.context import import_tensorflow

import_tensorflow()  # before the modules of this room do, whose import would log
