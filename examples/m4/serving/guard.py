"""What clients may do to the service: limits of connections and times, and who may ask."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from typing import Any, cast

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 256  # a process may have a thousand files open
PATIENCE = 5.0  # seconds for a request to come, and for a part of an answer to be taken
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class Connection(H11Protocol):
    """A connection that is closed if its request is late, or others need its place."""

    since = 0.0  # when it was made
    deadline: asyncio.TimerHandle | None = None  # for a request to be whole
    unread: asyncio.TimerHandle | None = None  # for the client to read an answer

    @property
    def incomplete(self) -> bool:
        """Whether it waits for its client: for a request, or the rest of one."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Take the connection, in the place of the oldest one that waits if there are too many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._watch()
        if len(self.connections) > MOST_CONNECTIONS:
            everyone = (cast(Connection, one) for one in self.connections if one is not self)
            waiting = [one for one in everyone if one.incomplete]
            min(waiting, key=lambda one: one.since, default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        for timer in (self.deadline, self.unread):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Wait for a client that does not read, for a while."""
        super().pause_writing()
        self.unread = self.loop.call_later(PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    def _watch(self) -> None:
        """Give a request that is not whole until a deadline, which its parts do not move."""
        if self.deadline is None and self.incomplete:
            self.deadline = self.loop.call_later(PATIENCE, self._give_up)
        elif self.deadline is not None and not self.incomplete:
            self.deadline.cancel()
            self.deadline = None

    def _give_up(self) -> None:
        """Close a connection whose request has not come in time."""
        self.deadline = None
        if self.incomplete and not self.transport.is_closing():
            self.transport.abort()


class Guard:
    """Refuses names of the service that are not its own, and pages from elsewhere.

    A page of another site can make a browser ask this service: by a form or a script, which says
    its origin, or under a name of its own that leads here, which is then the Host.

    Args:
        application: What is guarded.
        names: Other names of this service; addresses and the names of this machine are allowed.
    """

    def __init__(self, application: ASGIApp, names: Collection[str] = ()):
        self.application = application
        self.names = {*names, "localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return await self.application(scope, receive, send)
        given = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host, origin = given.get("host", "").lower(), given.get("origin", "").lower()

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [
                    *message["headers"], *(one for one in more if one[0] not in present)
                ]  # fmt: skip
            await send(message)

        refusal = None
        if not self._is_own(host):
            refusal = JSONResponse({"error": f"this is not {host[:100]!r}"}, 421)
        elif origin and origin.partition("://")[2] != host:
            refusal = JSONResponse({"error": "pages of other sites may not ask"}, 403)
        await (refusal or self.application)(scope, receive, send_guarded)

    def _is_own(self, host: str) -> bool:
        """Return whether a Host is this service: an address, or a name that it knows."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return "*" in self.names or name in self.names
        return True


def make_config(application: ASGIApp, **options: Any) -> uvicorn.Config:
    """Make the configuration of a server with these limits."""
    # Asyncio accepts as many connections as the backlog before any can be closed.
    return uvicorn.Config(
        application, http=Connection, ws="none", backlog=128, timeout_keep_alive=5, **options
    )
