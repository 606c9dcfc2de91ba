"""Plain NATS: publish, subscribe, queue groups, wildcards, requests, headers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from tests.nats.scenarios import RECORDED, shows
from tests.nats.users import CALL_SECONDS, User, raised


async def _drained(user: User, subscription: Any) -> list[Msg]:
    """Return what a subscription has received when all that was sent before has come."""
    # not by flush(): nats-py sends its PING ahead of what waits to be written
    last = await user.nc.subscribe(inbox := user.nc.new_inbox())
    await user.nc.publish(inbox)
    await last.next_msg(CALL_SECONDS)
    return [await subscription.next_msg(1) for _ in range(subscription.pending_msgs)]


@shows([["a", "hello"], ["a.b", "x" * 100_000], ["a", ""]])
async def publish_and_subscribe(user: User) -> Any:
    subscription = await user.nc.subscribe(f"{user.subject}.>")
    await user.nc.publish(f"{user.subject}.a", b"hello")
    await user.nc.publish(f"{user.subject}.a.b", b"x" * 100_000)
    await user.nc.publish(f"{user.subject}.a", b"")
    await user.nc.publish(user.subject, b"not covered")
    found = await _drained(user, subscription)
    return [[one.subject.partition(".")[2], one.data.decode()] for one in found]


@shows(
    {
        "*": ["a", "b"],
        "*.*": ["a.b", "b.b"],
        ">": ["a", "a.b", "b", "b.b", "a.b.c"],
        "a.*": ["a.b"],
        "a.>": ["a.b", "a.b.c"],
        "*.b.>": ["a.b.c"],
        "a": ["a"],
    }
)
async def wildcards(user: User) -> Any:
    patterns = ["*", "*.*", ">", "a.*", "a.>", "*.b.>", "a"]
    subscriptions = {one: await user.nc.subscribe(f"{user.subject}.{one}") for one in patterns}
    for tail in ("a", "a.b", "b", "b.b", "a.b.c"):
        await user.nc.publish(f"{user.subject}.{tail}", tail.encode())
    found = {one: await _drained(user, at) for one, at in subscriptions.items()}
    return {one: [message.data.decode() for message in at] for one, at in found.items()}


@shows([300, 300, True])
async def queue_groups(user: User) -> Any:
    members = [await user.nc.subscribe(user.subject, queue="q") for _ in range(3)]
    other = await user.nc.subscribe(user.subject, queue="other")
    for number in range(300):
        await user.nc.publish(user.subject, b"%d" % number)
    shares = [len(await _drained(user, one)) for one in members]
    return [sum(shares), len(await _drained(user, other)), min(shares) > 0]


@shows(["pong ping", "NoRespondersError", "TimeoutError"])
async def requests(user: User) -> Any:
    async def answer(message: Msg) -> None:
        await message.respond(b"pong " + message.data)

    await user.nc.subscribe(f"{user.subject}.service", cb=answer)
    await user.nc.subscribe(f"{user.subject}.silent")
    found: list[Any] = [(await user.nc.request(f"{user.subject}.service", b"ping", 5)).data]
    found[0] = found[0].decode()
    for tail in ("nobody", "silent"):
        try:
            await user.nc.request(f"{user.subject}.{tail}", b"", 0.3)
        except NoRespondersError:
            found.append("NoRespondersError")
        except NatsTimeoutError:
            found.append("TimeoutError")
    return found


@shows([{"A": "1", "b-C": "two words", "Empty": ""}, "body", None])
async def headers(user: User) -> Any:
    subscription = await user.nc.subscribe(user.subject)
    sent = {"A": "1", "b-C": "two words", "Empty": ""}
    await user.nc.publish(user.subject, b"body", headers=sent)
    await user.nc.publish(user.subject, b"none")
    first, second = await _drained(user, subscription)
    return [first.headers, first.data.decode(), second.headers]


@shows([3, 0])
async def unsubscribing(user: User) -> Any:
    limited = await user.nc.subscribe(user.subject)
    await limited.unsubscribe(limit=3)
    gone = await user.nc.subscribe(user.subject)
    await gone.unsubscribe()
    for _ in range(6):
        await user.nc.publish(user.subject, b"x")
    await _drained(user, gone)
    return [limited.pending_msgs, gone.pending_msgs]


@shows([True, 1_048_576, True, "MaxPayloadError"])
async def what_the_server_says_of_itself(user: User) -> Any:
    info = user.nc._server_info
    too_large = await raised(user.nc.publish(user.subject, b"x" * (info["max_payload"] + 1)))
    return [info["headers"], info["max_payload"], info["jetstream"], too_large]


@shows(["MSG", 5_000])
async def many_messages_in_order(user: User) -> Any:
    subscription = await user.nc.subscribe(user.subject)
    for number in range(5_000):
        await user.nc.publish(user.subject, b"%d" % number)
    found = await _drained(user, subscription)
    in_order = [one.data for one in found] == [b"%d" % number for number in range(5_000)]
    return ["MSG" if in_order else "out of order", len(found)]


async def _raw(user: User, *lines: bytes) -> list[str]:
    """Return what the server answers to lines on a connection of their own, after INFO."""
    url = user.nc.connected_url
    assert url is not None
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        await reader.readline()
        writer.write(b"".join(line + b"\r\n" for line in lines))
        found: list[str] = []
        while line := await asyncio.wait_for(reader.readline(), CALL_SECONDS):
            text = line.decode().rstrip("\r\n")
            if text.startswith("INFO"):
                continue
            found.append(text)
            if text == "PONG":
                break
        return found if found[-1:] == ["PONG"] else [*found, "closed"]
    finally:
        writer.close()


def _connect(**options: Any) -> bytes:
    base = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    return b"CONNECT " + json.dumps(base | options).encode()


RAW: dict[str, list[bytes]] = {
    "verbose": [_connect(verbose=True), b"SUB v.a 1", b"PUB v.a 2", b"hi", b"PING"],
    "verbose by default": [b"CONNECT {}", b"SUB v.d 1", b"UNSUB 1", b"PING"],
    "lower case and spaces": [_connect(), b"sub  l.c   7", b"pub\tl.c  2 ", b"hi", b"ping"],
    "queue of three": [_connect(), b"SUB q.a q 9", b"PUB q.a r.s 1", b"x", b"PING"],
    "headers": [
        _connect(),
        b"SUB h.a 1",
        b"HPUB h.a 20 23",
        b"NATS/1.0\r\nA: b  \r\n\r\nabc",
        b"PING",
    ],
    "unknown verb": [_connect(), b"FOO bar", b"PING"],
    "bad subject": [_connect(), b"SUB a..b 1", b"PING"],
    "wildcard in the middle": [_connect(), b"SUB a.>.b 1", b"SUB x.a*.b 2", b"PING"],
    "pedantic": [_connect(pedantic=True), b"PUB a.*.b 1", b"x", b"PING"],
    "not pedantic": [_connect(), b"SUB n.* 1", b"PUB n.* 1", b"x", b"PING"],
    "payload too large": [_connect(), b"PUB a 1048577", b"PING"],
    "bad length": [_connect(), b"PUB a -1", b"PING"],
    "length not met": [_connect(), b"PUB a 3", b"abcdef", b"PING"],
    "no length": [_connect(), b"PUB a", b"PING"],
    "too many arguments": [_connect(), b"PUB a b c d", b"PING"],
    "max of unsub": [
        _connect(),
        b"SUB u.a 1",
        b"UNSUB 1 1",
        b"PUB u.a 1",
        b"x",
        b"PUB u.a 1",
        b"y",
        b"PING",
    ],
    "unsub of nothing": [_connect(), b"UNSUB 42", b"PING"],
    "no responders": [_connect(), b"SUB i.n 1", b"PUB no.such i.n 0", b"", b"PING"],
    "no responders unknown": [
        _connect(no_responders=False),
        b"SUB i.m 1",
        b"PUB no.such i.m 0",
        b"",
        b"PING",
    ],
    "no responders without headers": [_connect(headers=False), b"PING"],
    "echo off": [_connect(echo=False), b"SUB e.a 1", b"PUB e.a 1", b"x", b"PING"],
    "http": [b"GET / HTTP/1.1", b"Host: a", b"", b""],
    "hpub without headers": [
        _connect(headers=False, no_responders=False),
        b"HPUB a 12 12",
        b"NATS/1.0\r\n\r",
        b"PING",
    ],
    "two pings": [_connect(), b"PONG", b"PING"],
    "before connect": [b"PING"],
    "too long": [b"CONNECT {}", b"SUB " + b"x" * 5_000 + b" 1", b"PING"],
}


@shows(RECORDED)
async def lines_of_the_protocol(user: User) -> Any:
    found = await asyncio.gather(*(_raw(user, *lines) for lines in RAW.values()))
    return dict(zip(RAW, found, strict=True))
