"""The output of every benchmark: its numbers printed as JSON and written to --json."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from absl import flags

_JSON = flags.DEFINE_string("json", None, "The file the result is written to.")


def publish(result: Any, show: bool = True) -> None:
    """Print a result, unless it was shown, and write it to the file of --json if there is one."""
    text = json.dumps(result, indent=2)
    if show:
        print(text)
    if _JSON.value:
        pathlib.Path(_JSON.value).write_text(text + "\n")
