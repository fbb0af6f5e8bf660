"""A service that speaks the completions API: POST /v1/completions, GET /v1/models, GET /health."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import namedmesh as nm
from examples.llm.engine import Engine, Request
from examples.m4.serving.application import read_body
from examples.m4.serving.guard import Guard, make_config

KNOWN = {
    "model", "prompt", "max_tokens", "temperature", "top_p", "n", "stop_token_ids", "logprobs",
    "stream", "user",
}  # fmt: skip
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what tokenizers write for a part of a character


@dataclass(frozen=True)
class Limits:
    """The limits of clients.

    Attributes:
        texts: The texts of one request: its prompts times `n`.
        body: The bytes of a request.
        waiting: The texts of all clients that wait for a slot.
        seconds: How long a request may take.
    """

    texts: int = 16
    body: int = 1 << 20
    waiting: int = 256
    seconds: float = 300.0


class Scheduler:
    """Runs an engine in a thread: requests take slots in the order they come."""

    def __init__(self, engine: Engine, waiting: int):
        self.engine, self.most = engine, waiting
        self.waiting: deque[Request] = deque()
        self.answered, self.closed = 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the step that runs."""
        with self._changed:
            self.closed = True
            self._changed.notify()
        self._thread.join()

    def submit(self, requests: list[Request]) -> bool:
        """Let requests wait for slots; return whether there is room for all of them."""
        with self._changed:
            if self.closed or len(self.waiting) + len(requests) > self.most:
                return False
            self.waiting.extend(requests)
            self._changed.notify()
        return True

    def cancel(self, requests: list[Request]) -> None:
        """Give requests up, whether they wait or have a slot."""
        with self._changed:
            for request in requests:
                request.finished = request.finished or "cancelled"

    def _run(self) -> None:
        """Add what waits, write, and wait for more."""
        engine = self.engine
        while True:
            with self._changed:
                while not (self.closed or self.waiting or any(engine.slots)):
                    self._changed.wait()
                if self.closed:
                    return
                for request in engine.slots:
                    if request is not None and request.finished:
                        engine.cancel(request)
                while self.waiting and (self.waiting[0].finished or engine.add(self.waiting[0])):
                    self.waiting.popleft()
            if any(engine.slots):
                self.answered += len(engine.step())


def make_application(
    engine: Engine, name: str, tokenizer: Any = None, limits: Limits = Limits()
) -> Starlette:
    """Make the application.

    Args:
        engine: What writes.
        name: The name of the model.
        tokenizer: That of the model (`tokenizers.Tokenizer`), or None: prompts are token numbers.
        limits: What a client may ask for.
    """
    scheduler = Scheduler(engine, limits.waiting)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        scheduler.start()
        yield
        await asyncio.to_thread(scheduler.close)

    async def tell_health(_: HttpRequest) -> Response:
        used = sum(one is not None for one in engine.slots)
        state = {"waiting": len(scheduler.waiting), "slots": len(engine.slots), "used": used}
        return JSONResponse({"status": "ok", **state, "answered": scheduler.answered})

    async def list_models(_: HttpRequest) -> Response:
        model = {"id": name, "object": "model", "owned_by": "namedmesh"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(http: HttpRequest) -> Response:
        given = parse(await read_body(http, limits.body))
        prompts = read_prompts(given.get("prompt"), tokenizer)
        requests = make_requests(given, prompts, engine, limits)
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue()
        for index, request in enumerate(requests):
            request.on_token = lambda one, index=index: loop.call_soon_threadsafe(
                arrived.put_nowait, (index, len(one.tokens), one.finished)
            )
        if not scheduler.submit(requests):
            raise HTTPException(429, "too many texts wait; try again", {"Retry-After": "1"})
        frame = {
            "id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion",
            "created": int(time.time()), "model": name,
        }  # fmt: skip

        async def tokens() -> AsyncIterator[tuple[int, int, str | None]]:
            """Yield the text, the number of its tokens and whether it is finished, as they come."""
            left = len(requests)
            try:
                async with asyncio.timeout(limits.seconds):
                    while left:
                        event = await arrived.get()
                        left -= event[2] is not None
                        yield event
            finally:
                scheduler.cancel(requests)

        async def events() -> AsyncIterator[str]:
            with contextlib.suppress(TimeoutError):
                async for index, count, finished in tokens():
                    part = slice(count - 1, None if finished else count)
                    choice = describe(requests[index], index, given, tokenizer, part)
                    choice["finish_reason"] = finished
                    yield f"data: {json.dumps({**frame, 'choices': [choice]})}\n\n"
                yield "data: [DONE]\n\n"

        if given.get("stream"):
            return StreamingResponse(events(), media_type="text/event-stream")
        try:
            async for _ in tokens():
                pass
        except TimeoutError:
            raise HTTPException(504, f"it took more than {limits.seconds:g} s") from None
        choices = [describe(one, i, given, tokenizer) for i, one in enumerate(requests)]
        read, written = sum(map(len, prompts)), sum(len(one.tokens) for one in requests)
        usage = {
            "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written,
        }  # fmt: skip
        return JSONResponse({**frame, "choices": choices, "usage": usage})

    async def refuse(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        body = {"error": {"message": error.detail, "type": "invalid_request_error"}}
        return JSONResponse(body, error.status_code, error.headers)

    routes = [
        Route("/v1/completions", complete, methods=["POST"]),
        Route("/v1/models", list_models),
        Route("/health", tell_health),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refuse})


def parse(body: bytes) -> dict[str, Any]:
    """Read a request; what is wrong with it is an error of the client."""
    try:
        given = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the request is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise HTTPException(400, 'send an object, e.g. {"prompt": [1, 5, 9], "max_tokens": 16}')
    unknown = sorted({*given} - KNOWN)
    if unknown:
        raise HTTPException(400, f"not supported: {', '.join(unknown)}; known: {sorted(KNOWN)}")
    return given


def read_prompts(prompt: Any, tokenizer: Any) -> list[list[int]]:
    """Return the tokens of a prompt or of several, which are texts or lists of numbers."""
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    prompts = []
    for one in prompt if several else [prompt]:
        if isinstance(one, str) and tokenizer is not None:
            one = tokenizer.encode(one.encode(errors="replace").decode()).ids
        if not isinstance(one, list) or not one or not all(type(token) is int for token in one):
            also = "" if tokenizer is not None else "; texts need the model's tokenizer.json"
            raise HTTPException(400, f"prompt: send a text, token numbers, or a list of them{also}")
        prompts.append(one)
    return prompts


def make_requests(
    given: dict[str, Any], prompts: list[list[int]], engine: Engine, limits: Limits
) -> list[Request]:
    """Return a request for each text, or raise for an option that has no such value."""

    def number(name: str, default: Any, least: float, most: float) -> Any:
        value = given.get(name)
        value = default if value is None else value
        kind = (int,) if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            raise HTTPException(400, f"{name}: send a number from {least:g} to {most:g}")
        return value

    vocab, longest = engine.settings.architecture.vocab, engine.longest
    end = given.get("stop_token_ids")
    end = engine.ends if end is None else end
    if not isinstance(end, (list, tuple)):
        raise HTTPException(400, "stop_token_ids: send a list of token numbers, e.g. [2]")
    tokens = [*end, *(token for prompt in prompts for token in prompt)]
    if not all(type(token) is int and 0 <= token < vocab for token in tokens):
        raise HTTPException(400, f"tokens are numbers from 0 to {vocab - 1}")
    if not isinstance(given.get("stream"), (bool, type(None))):
        raise HTTPException(400, "stream: send true or false")
    number("logprobs", 0, 0, 100)
    copies = number("n", 1, 1, limits.texts)
    if copies * len(prompts) > limits.texts:
        raise HTTPException(400, f"at most {limits.texts} texts in a request")
    made = []
    for prompt in prompts:
        if len(prompt) > longest:
            raise HTTPException(400, f"a prompt has at most {longest} tokens")
        room = engine.size - len(prompt)
        options = {
            "most": number("max_tokens", min(16, room), 1, room),
            "temperature": number("temperature", 1.0, 0.0, 100.0),
            "top_p": number("top_p", 1.0, 1e-6, 1.0),
            "end": tuple(end),
        }
        made += [Request(prompt, **options) for _ in range(copies)]
    return made


def describe(
    request: Request, index: int, given: dict[str, Any], tokenizer: Any, part: slice = slice(None)
) -> dict[str, Any]:
    """Describe what was written, or a part of it, as clients of the API expect it."""
    tokens = request.tokens[part]
    spell = (lambda ids: tokenizer.decode(ids)) if tokenizer else lambda ids: ""
    # A token may be a part of a character, which waits for its last one: what a token adds is what
    # the whole text has more.
    text, before = (spell(request.tokens[:end]) for end in (part.stop, part.start or 0))
    text = text if part.stop is None else text.rstrip(UNFINISHED)
    text = text[len(before.rstrip(UNFINISHED)) :]
    choice = {"index": index, "text": text, "tokens": tokens, "finish_reason": request.finished}
    choice["logprobs"] = None
    if given.get("logprobs") is not None:
        names = [spell([token]) or str(token) for token in tokens]
        scores = request.log_probabilities[part]
        choice["logprobs"] = {"tokens": names, "token_logprobs": scores, "top_logprobs": None}
    return choice


def serve(
    engine: Engine, folder: pathlib.Path, tokenizer: Any, host: str, port: int
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM, with the limits of connections that M4's service has."""
    application = make_application(engine, folder.resolve().name, tokenizer)
    config = make_config(Guard(application), host=host, port=port, log_level="info")
    uvicorn.Server(config).run()


def open_engine(folder: pathlib.Path, settings: Any, size: int, seed: int) -> tuple[Engine, Any]:
    """Return the engine of a folder, and its tokenizer if there is one."""
    from examples.llm.packing import load_tokenizer

    engine, tokenizer = Engine(folder, settings, size, seed=seed), None
    with contextlib.suppress(nm.NamedMeshError):
        tokenizer = load_tokenizer(folder)
    return engine, tokenizer
