"""An application that listens while a test goes on."""

import contextlib
import threading
import time
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from examples.m4.serving.guard import Guard, make_config
from examples.m4.serving.server import listen


@contextlib.contextmanager
def listening(application: Starlette) -> Iterator[str]:
    """Serve in a thread; the address."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(make_config(Guard(application), log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < until and thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
