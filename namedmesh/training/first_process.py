"""What one process does for all of them, and all of them know the outcome of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from namedmesh.errors.errors import NamedMeshError
from namedmesh.processes.processes import Processes


def run_on_first(
    processes: Processes, what: str, action: Callable[[], Any], *, fix: str, timeout: float
) -> Any:
    """Run a function on process 0 and give its result to all processes; all must call it.

    >>> run_on_first(Processes(), "a sum", lambda: 1 + 2, fix="", timeout=1)
    3
    """
    answer: dict[str, Any] = {}
    if processes.first:
        try:
            answer["result"] = action()
        except NamedMeshError as error:
            answer |= {"problem": error.problem, "details": error.details, "fix": error.fix}
        except (OSError, ValueError) as error:
            answer |= {"problem": shorten_error(error), "details": [], "fix": fix}
    texts = processes.exchange(what, json.dumps(answer), timeout=timeout)
    answer = json.loads(texts[0])
    if "problem" in answer:
        raise NamedMeshError(answer["problem"], *answer["details"], fix=answer["fix"])
    return answer["result"]


def shorten_error(error: BaseException) -> str:
    """What went wrong with a file, in one line.

    >>> shorten_error(FileNotFoundError(2, "No such file or directory", "a/b"))
    'No such file or directory: a/b'
    """
    if isinstance(error, NamedMeshError):
        return error.problem
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}"
    # tensorstore appends its whole configuration to a message
    text = str(error).split(" [tensorstore_spec=")[0].split(" [source locations=")[0]
    return f"{type(error).__name__}: {text[:400]}"
