"""A user of nats-py: a connection of its own, streams with names of their own, replies kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import uuid4

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import (
    APIError,
    BadRequestError,
    NoKeysError,
    NotFoundError,
    ServerError,
    ServiceUnavailableError,
)

T = TypeVar("T")
SECONDS: Final = 90.0
"""How long a scenario may take."""
CALL_SECONDS: Final = 30.0
PLAIN: Final = (APIError, NotFoundError, BadRequestError, ServerError, ServiceUnavailableError)
"""Exceptions that say no more than the codes."""
NOT_JSON: Final = ("$JS.API.CONSUMER.MSG.NEXT.", "$JS.API.DIRECT.GET.")


class RecordingClient(Client):  # type: ignore[misc, unused-ignore]
    """nats-py, which keeps every reply of the API and every answer to a publish."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[dict[str, Any]] = []

    async def request(self, subject: str, *arguments: Any, **named: Any) -> Msg:
        """Send a request and keep what came back if it is JetStream's."""
        answer = await super().request(subject, *arguments, **named)
        if not subject.startswith(NOT_JSON) and answer.data.startswith(b"{"):
            found = json.loads(answer.data)
            if subject.startswith("$JS.API.") or ("stream" in found and "seq" in found):
                self.replies.append(found)
        return answer


class User:
    """What a scenario works with: a connection, JetStream on it, and a stream's name."""

    def __init__(self, nc: RecordingClient, name: str = "") -> None:
        self.nc = nc
        self.js: JetStreamContext = nc.jetstream(timeout=CALL_SECONDS)
        self.name = name or f"S-{uuid4().hex[:10]}"
        self.subject = self.name.lower()
        """The first token of subjects that this user's stream may have."""

    async def api(self, call: str, body: Any = None) -> dict[str, Any]:
        """Return the reply to a call of the API; `$` in the call is the stream's name."""
        content = b"" if body is None else body if isinstance(body, bytes) else _json(body)
        subject = "$JS.API." + call.replace("$", self.name)
        answer = await self.nc.request(subject, content, timeout=CALL_SECONDS)
        return dict(json.loads(answer.data))

    async def stream(self, **config: Any) -> dict[str, Any]:
        """Create the user's stream, which takes all subjects below the user's; return the reply."""
        config = {"name": self.name, "subjects": [f"{self.subject}.>"]} | config
        return await self.api("STREAM.CREATE.$", config)

    async def consumer(self, name: str, **config: Any) -> dict[str, Any]:
        """Create a durable consumer of the user's stream; return the reply."""
        config = {"durable_name": name, "ack_policy": "explicit"} | config
        body = {"stream_name": self.name, "config": config}
        return await self.api(f"CONSUMER.CREATE.$.{name}", body)

    async def publish(
        self, tail: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> Any:
        """Publish to a subject of the stream; return the sequence, or code and err_code."""
        subject = f"{self.subject}.{tail}"
        answer = await self.nc.request(subject, payload, timeout=CALL_SECONDS, headers=headers)
        found = json.loads(answer.data)
        return failure(found) if "error" in found else found["seq"]

    async def fill(self, count: int, tail: str = "a") -> None:
        """Publish messages m1, m2, …"""
        for number in range(1, count + 1):
            await self.publish(tail, b"m%d" % number)

    async def next(self, consumer: str, **body: Any) -> list[Msg]:
        """Send a pull request; return messages and statuses until it ends."""
        body = {"batch": 1, "no_wait": True} | body
        found: list[Msg] = []
        inbox = self.nc.new_inbox()
        subscription = await self.nc.subscribe(inbox)
        await self.nc.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{consumer}", _json(body), inbox
        )
        while sum(is_message(one) for one in found) < body["batch"]:
            found.append(await subscription.next_msg(CALL_SECONDS))
            if status(found[-1])[:1] in ("4", "5"):
                break
        await subscription.unsubscribe()
        return found

    async def state(self, **body: Any) -> dict[str, Any]:
        """Return the state of the stream."""
        return dict((await self.api("STREAM.INFO.$", body))["state"])

    async def consumer_info(self, name: str) -> dict[str, Any]:
        """Return what there is to know about a consumer."""
        return await self.api(f"CONSUMER.INFO.$.{name}")


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def failure(reply: dict[str, Any]) -> Any:
    """Return "ok", or the code and err_code of a reply."""
    error = reply.get("error")
    return "ok" if error is None else [error["code"], error.get("err_code")]


async def raised(call: Awaitable[Any]) -> Any:
    """Return "ok", the code and err_code that a call raised, or the name of another exception."""
    try:
        await call
    except APIError as error:
        known = [getattr(error, one, None) for one in ("code", "err_code")]
        return known if known[1] and type(error) in PLAIN else type(error).__name__
    except Exception as error:  # noqa: BLE001, what a library raises is what its users see
        return type(error).__name__
    return "ok"


def status(message: Msg) -> str:
    """Return code and text of a status message; empty for a message of the stream."""
    headers = message.headers or {}
    if "Status" not in headers:
        return ""
    text, *_ = headers.get("Description", "").splitlines() or [""]
    return f"{headers['Status']} {text}"


def is_message(message: Msg) -> bool:
    """Return whether this is a message of a stream, not a status."""
    return not status(message)


def payloads(messages: list[Msg]) -> list[str]:
    """Return the payloads of messages, or their statuses."""
    return [status(one) or one.data.decode() for one in messages]


def token(message: Msg, number: int) -> int:
    """Return a token of the reply subject: 4 delivered, 5 stream, 6 consumer, 8 pending."""
    return int(message.reply.split(".")[number])


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = CALL_SECONDS) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


async def listed(listing: Callable[[], Awaitable[T]]) -> T:
    """Return what `history`, `keys` and `list` of nats-py find of a bucket that is not empty.

    They end at once if the server reports nothing pending and no message was received. nats-server
    counts a message as sent when it is queued, and its report may overtake the queue: then they
    raise that there is nothing, and are called again.
    """
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return await listing()
        except (NoKeysError, NotFoundError):
            if time.monotonic() > deadline:
                raise


async def watched(watch: Callable[[], Awaitable[Any]]) -> tuple[Any, Any]:
    """Return a watcher of nats-py for a bucket that is not empty, and the first entry it reports.

    It may report the end of what is there before all of it, see `listed`: then watch again.
    """
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        watcher = await watch()
        first = await watcher.updates(CALL_SECONDS)
        if first is not None or time.monotonic() > deadline:
            return watcher, first
        await watcher.stop()


async def _ignore(_: Exception) -> None:
    """A scenario shows what came of an error."""


@contextlib.asynccontextmanager
async def connected(url: str, name: str = "", *, last: bool = True) -> AsyncIterator[User]:
    """Connect a user; in the end the stream is deleted, unless somebody goes on with it."""
    nc = RecordingClient()
    await nc.connect(url, allow_reconnect=False, connect_timeout=30, error_cb=_ignore)
    user = User(nc, name)
    try:
        yield user
    finally:
        if last:
            with contextlib.suppress(Exception):
                await user.api("STREAM.DELETE.$")
        await nc.close()
