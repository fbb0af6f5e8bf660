"""Serving a run: the model is made ready, then the service listens until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any

import uvicorn

from examples.m4.run import Run
from examples.m4.serving.answers import Answers, Question
from examples.m4.serving.application import make_application
from examples.m4.serving.guard import Guard, make_config
from examples.m4.settings import Settings
from namedmesh.errors.errors import NamedMeshError


class Server(uvicorn.Server):
    """A server that tells when it listens, and whose end by a signal is its normal end.

    The second signal does not wait for what was taken.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell so."""
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM, once what was taken is answered."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit, self.should_exit = self.should_exit, True


def serve(
    run: Run,
    settings: Settings,
    *,
    host: str,
    port: int,
    which: str = "newest",
    names: Collection[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Serve until SIGINT or SIGTERM; requests that were taken are answered first.

    Port 0 is any that is free. The address is said once the service listens.
    """
    listener = listen(host, port)
    answers = Answers.open(run, settings, which, say)
    answers([Question("1", experts=True)])  # what is slow the first time
    application = make_application(answers, describe_model(run, answers), most=answers.most)
    config = make_config(
        Guard(application, names), log_level="warning", timeout_graceful_shutdown=60
    )
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}"
    server = Server(config, lambda: say(f"listening on {address}; ctrl-C stops"))
    asyncio.run(server.serve(sockets=[listener]))
    say("stopped")


def listen(host: str, port: int) -> socket.socket:
    """Take a port, before the model is made ready."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise NamedMeshError(
            f"cannot listen on {host}:{port}: {error}", fix="name another --host or --port"
        ) from None
    return listener


def describe_model(run: Run, answers: Answers) -> dict[str, Any]:
    """Describe the model to clients of the service."""
    settings = answers.translator.settings
    return {
        "run": run.folder.name,
        "step": answers.translator.step,
        "languages": answers.translator.languages.codes,
        "experts": settings.model.experts if answers.choices is not None else 0,
        "layers": settings.model.layers,
        "longest": settings.translation_length,
    }
