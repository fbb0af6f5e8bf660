"""Connections that the operating system closes when a process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Mapping

_PATIENCE = 2.0  # seconds for the coordinator to answer
_ASKED, _PAUSE = 3, 0.3  # times and seconds: a process that ends closes one thing after another
# Networks forget connections on which nothing is sent.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class Connections:
    """The connections of this process: process 0 has one with each other, they have one with it.

    Nothing is sent. An end of a connection is a hint and no proof: networks close some too.
    """

    def __init__(self, sockets: Mapping[int, socket.socket], coordinator: tuple[str, int]):
        self._sockets, self._coordinator = dict(sockets), coordinator
        for one in self._sockets.values():
            one.settimeout(None)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    with contextlib.suppress(OSError):  # one that is no connection of TCP
                        one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        os.register_at_fork(after_in_child=self._close)  # else a child would keep them open

    def _close(self) -> None:
        """Close this process's ends."""
        for one in self._sockets.values():
            one.close()
        self._sockets = {}

    def closed(self) -> set[int]:
        """The processes whose connections are closed."""
        waiter = select.poll()
        numbers = {one.fileno(): index for index, one in self._sockets.items()}
        for number in numbers:
            waiter.register(number, select.POLLIN)  # nobody sends: there is only an end to read
        return {numbers[number] for number, _ in waiter.poll(0)}

    def wait_for_end(self, index: int) -> None:
        """Wait until the connection with a process is closed."""
        with contextlib.suppress(OSError):
            self._sockets[index].recv(1)

    def coordinator_answers(self) -> bool:
        """Whether somebody listens at the coordinator's address, and goes on to."""
        for _ in range(_ASKED):
            try:
                socket.create_connection(self._coordinator, timeout=_PATIENCE).close()
            except OSError:
                return False
            time.sleep(_PAUSE)
        return True
