"""Every test runs on eight virtual CPU devices, and an unplanned collective is an error."""

import os

os.environ["NAMEDMESH_STRICT"] = "1"

from namedmesh.runtime import use_cpu_devices

use_cpu_devices(8)
