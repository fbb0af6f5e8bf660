"""Tables of wrong programs: each row a function, beside the whole message it must raise."""

import inspect
import re
from collections.abc import Callable

import pytest

import namedmesh as nm
from tests.messages import Message

B, S, M, H = nm.dims("batch=4 seq=6 model=8 hidden=16")
SPECS = {
    "x": nm.spec([B, S, M]),
    "w": nm.spec([M, H]),
    "k": nm.spec([B, S], "int32"),
    "n": nm.spec([], "int32"),
    "flag": nm.spec([], "bool"),
    "mask": nm.spec([B, S], "bool"),
    "half": nm.spec([B, S, M], "bfloat16"),
}


class Table(dict[str, tuple[Callable[..., object], Message]]):
    """Rows by name; a row is added by decorating the wrong function with its message."""

    def __call__(self, message: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
        def add(function: Callable[..., object]) -> Callable[..., object]:
            assert function.__name__ not in self, f"two rows are named {function.__name__}"
            self[function.__name__] = (function, Message.of(message, function))
            return function

        return add

    @property
    def rows(self) -> pytest.MarkDecorator:
        return pytest.mark.parametrize(("function", "message"), self.values(), ids=self.keys())


def traced(function: Callable[..., object]) -> nm.Program:
    """The program of a function whose arguments are named in SPECS."""
    return nm.trace(
        function, **{name: SPECS[name] for name in inspect.signature(function).parameters}
    )


def message_of(function: Callable[..., object], **given: object) -> str:
    """Returns what a wrong function raises, without line numbers; it is traced by default."""
    arguments = inspect.signature(function).parameters
    with pytest.raises(nm.NamedMeshError) as caught:
        if arguments and not given:
            traced(function)
        else:
            function(**{name: given[name] for name in arguments})
    return re.sub(r"\bat test_\w+\.py:\d+", "at LINE", str(caught.value))
