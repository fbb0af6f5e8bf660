"""The HTTP interface of the service: POST /translate, GET /health, GET /model, and the page."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import pathlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from examples.m4.serving.answers import Question
from examples.m4.serving.queue import Batcher, QueueClosed, QueueFull

PAGE = pathlib.Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Limits:
    """The limits of a client's request.

    Attributes:
        texts: The texts of one request.
        characters: The characters of one text.
        body: The bytes of a request.
        waiting: The texts of all clients that wait at the same time.
    """

    texts: int = 64
    characters: int = 2_000
    body: int = 1 << 21  # room for all texts with every character escaped
    waiting: int = 1_024


def make_application(
    answers: Callable[[list[Question]], list[dict[str, Any]]],
    facts: dict[str, Any],
    *,
    most: int,
    limits: Limits = Limits(),
    patience: float = 0.01,
) -> Starlette:
    """Make the application.

    Args:
        answers: Answers questions, at most `most` at a time.
        facts: What GET /model tells of the model.
        most: The questions of a batch.
        limits: What a client may ask for.
        patience: How long a batch that is not full waits for more, in seconds.
    """
    batcher = Batcher(answers, most=most, waiting=limits.waiting, patience=patience)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.close()

    async def show_page(_: Request) -> Response:
        text = PAGE.read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"content-security-policy": allow_own_script(text)})

    async def tell_health(_: Request) -> Response:
        state = {"waiting": batcher.length, "answered": batcher.answered}
        if batcher.closed:
            return JSONResponse({"status": "stopping", **state}, 503)
        return JSONResponse({"status": "ok", **state})

    async def tell_model(_: Request) -> Response:
        return JSONResponse({**facts, "limits": vars(limits)})

    async def translate(request: Request) -> Response:
        questions = parse(await read_body(request, limits.body), limits)
        try:
            return JSONResponse({"answers": await batcher.answer(questions)})
        except QueueFull:
            raise HTTPException(
                503, f"{batcher.length} texts wait; try again", {"Retry-After": "1"}
            ) from None
        except QueueClosed:
            raise HTTPException(503, "the service stops") from None

    return Starlette(
        routes=[
            Route("/", show_page),
            Route("/health", tell_health),
            Route("/model", tell_model),
            Route("/translate", translate, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _tell_error, Exception: _tell_failure},
        lifespan=lifespan,
    )


def allow_own_script(page: str) -> str:
    """Return the policy of a page: its own script, by its hash, and nothing from elsewhere."""
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


async def read_body(request: Request, most: int) -> bytes:
    """Read the body of a request; raise as soon as it is too long."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise HTTPException(413, f"the request is longer than {most:,} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the request ended early") from None
    return body


def parse(body: bytes, limits: Limits) -> list[Question]:
    """Read the questions of a request; what is wrong with it is an error of the client."""
    try:
        given = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also of a number with too many digits
        raise HTTPException(400, f"the request is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise HTTPException(400, 'send an object, e.g. {"texts": ["Guten Morgen"]}')
    unknown = sorted({*given} - {"texts", "experts"})
    if unknown:
        # What is not Unicode, half of a surrogate pair, is escaped: the answer could not say it.
        names = ", ".join(unknown).encode("utf-8", "backslashreplace").decode()
        raise HTTPException(400, f"unknown: {names}; known are texts and experts")
    texts, experts = given.get("texts"), given.get("experts", False)
    if not isinstance(experts, bool):
        raise HTTPException(400, "experts is true or false")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise HTTPException(400, "texts is a list of strings")
    if not texts:
        raise HTTPException(400, "texts is empty")
    if len(texts) > limits.texts:
        raise HTTPException(413, f"{len(texts)} texts; send at most {limits.texts} at a time")
    for number, text in enumerate(texts):
        if len(text) > limits.characters:
            raise HTTPException(
                413,
                f"texts[{number}] has {len(text):,} characters; {limits.characters:,} are allowed",
            )
        if not text.strip():
            raise HTTPException(400, f"texts[{number}] is empty")
        if any(0xD800 <= ord(character) < 0xE000 for character in text):
            raise HTTPException(400, f"texts[{number}] has half of a surrogate pair")
    return [Question(text, experts) for text in texts]


async def _tell_error(_: Request, error: Exception) -> Response:
    """Tell the client what it did wrong, as JSON."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _tell_failure(_: Request, error: Exception) -> Response:
    """Tell the client that the service failed, without the inside of it; the log has that."""
    return JSONResponse({"error": "the service failed; its log says more"}, 500)
