"""The bytes of prepared connections are answered as those of connections that are served in steps.

Each round sends a few requests again and again over three connections, some of them damaged, in
pieces that are sent in any order: requests as a whole, cut anywhere, joined with the next ones, or
broken off. SOAK_PREPARED_ROUNDS asks for so many rounds.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import gevent
import pytest

from router.web.dmaap.prepared import PreparedPublish
from tests.http.corpus import INNER
from tests.http.mutating import mutated
from tests.unit.web.applications import header
from tests.unit.web.worker.greenlets import under_gevent
from tests.unit.web.worker.prepared import House, comparable_bytes, request, whole_answer
from tests.unit.web.worker.test_prepared import ADDRESSES, CHANGES, HOST, PAGE, TEXT, change

ROUNDS = int(os.environ.get("SOAK_PREPARED_ROUNDS", "48"))
SECONDS = 40 + ROUNDS
ROUNDS_OF_ONE_POOL = 6
_PATHS = [
    *["/events/t"] * 9, "/events/u?partitionKey=k", "/events/%74", "/events/t%2Fx",
    "/events/t?x=%zz", "//events/t", "http://127.0.0.1/events/t", "/events/t#f", "/events/t/",
    f"/events/{'x' * 300}", "/events/t?partitionKey=a&partitionKey=b", "/events/t?partitionKey",
    "/events/transaction/t", "/events/t-partition-0", "/topics",
]  # fmt: skip
_METHODS = ["POST"] * 20 + ["GET", "PUT", "HEAD", "OPTIONS"]
_VERSIONS = ["1.1"] * 8 + ["1.0"]
_KINDS = [
    *["text/plain"] * 6, "text/plain; charset=latin-1", "application/json", "application/cambria",
    "application/octet-stream", "application/x-ndjson", "application/cloudevents+json", "",
    "Text/PLAIN", "application/cambria-zip", "application/cloudevents-batch+json",
]  # fmt: skip
# A check of a password ends when its clients leave: each is checked before a round. What little
# memory there is goes to those that come first.
_USERS = ["anna"] * 3 + ["bert"]
_SECRET = re.compile(rb"Basic [\w=+/]+")
_CHANGES = [what for what in CHANGES if "users" not in what and "memory" not in what]
_EXTRAS = [
    "Connection: close", "Connection: keep-alive", "Connection: Keep-Alive, x",
    "Connection: upgrade", "Upgrade: h2c", "Expect: 100-continue", "Expect: 200",
    f"Idempotency-Key: {'k' * 256}", "Idempotency-Key:",
    f"traceparent: 00-{'1' * 32}-{'2' * 16}-01",
    "traceparent: no", "tracestate: a=b", "ce-id: 1",
    "ce-id: 1\r\nce-source: /s\r\nce-type: x\r\nce-specversion: 1.0", "ce-type: a%zz",
    "ce-x: only", "Content-Encoding: gzip", "Content-Encoding: identity", "Content-Encoding: br",
    "Content-Encoding:", f"Origin: {PAGE}", "Origin: https://foreign.example", "Origin: null",
    "Sec-Fetch-Site: cross-site", "X-Forwarded-For: 10.0.0.2", "X-Forwarded-For: 10.0.0.9",
    "X-Forwarded-Host: a", "Cookie: session=1", "Authorization: Bearer x", "X-CambriaAuth: anna:x",
    "X-Auth: anna:x", "Host: 127.0.0.1", "Host: evil", "Content-Type: text/plain",
    "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked",
    "Accept: application/x-ndjson", "X_Under: 1", "Content_Length: 0", "X: a\r\n folded",
    "X-Tab:\tvalue \t", f"X-Long: {'a' * 1_700}", f"X-Longer: {'a' * 3_000}", "X-Request-Id: 1",
    "TE: trailers", "X-\xfc: 1", "Content-Length: 3", "X-Value: \xfc", "X-Percent: %s%d%",
    "Date: Sun, 01 Jan 2023 00:00:00 GMT",
]  # fmt: skip
_BODIES = [
    b"a", b"first\nsecond", b"\r\n\r\n", b"x" * 700, b"y" * 3_000, b'{"a":1}',
    b'[{"a":1},{"b":2}]', b"[1", b"1.2.kab", b"1.5.khello1.5.khello", b"9.9.short", b"\0\xff",
    INNER, gzip.compress(b"zipped\n"), b'{"key":"k","value":"v"}\n{"value":"w"}\n', b"",
    b'{"id":"1","source":"/s","type":"x","specversion":"1.0","data":1}',
]  # fmt: skip
# What depends on which pieces have come when the server looks: whether it waits for the body, and
# what it says of a head that is refused before its end.
_BY_CHANCE = re.compile(rb"HTTP/1\.1 100 Continue\r\n\r\n|(?<=</h1>)[^<]*")


class Pool:
    """A few heads that are sent again and again, each with bodies of one length."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._made = [self._plain(), *(self._make() for _ in range(chance.randint(1, 3)))]

    def requests(self) -> Iterator[bytes]:
        """Yield the requests of one connection."""
        chance = self._chance
        for _ in range(chance.randint(1, 7)):
            head, bodies = chance.choice([self._made[0], *self._made])
            whole = head + chance.choice(bodies)
            if chance.random() < 0.06:
                damaged = mutated(chance, whole)
                if _SECRET.findall(damaged) == _SECRET.findall(whole):
                    whole = damaged
            yield whole

    def _plain(self) -> tuple[bytes, list[bytes]]:
        """Return what can be prepared, in every application."""
        fields = [HOST, TEXT, ("Authorization", header("anna", "secret"))]
        bodies = [b"12\r\n3", b"a\n\nbc", b"\n" * 5]
        return request(f"/events/t{self._chance.randrange(3)}", b"", fields).replace(
            b"Content-Length: 0", b"Content-Length: 5"
        ), bodies

    def _make(self) -> tuple[bytes, list[bytes]]:
        chance = self._chance
        body = chance.choice(_BODIES)
        others = [other for other in _BODIES if len(other) <= len(body)]
        bodies = [body, *(other.ljust(len(body), b"\n") for other in chance.sample(others, 1))]
        lines = ["Host: 127.0.0.1"] if chance.random() < 0.97 else []
        if kind := chance.choice(_KINDS):
            lines.append(f"Content-Type: {kind}")
        if chance.random() < 0.7:
            lines.append(f"Authorization: {header(chance.choice(_USERS), 'secret')}")
        lines += chance.sample(_EXTRAS, chance.choice([0, 0, 0, 1, 1, 2, 3]))
        length = len(body) + chance.choice([0] * 20 + [-1, 1])
        lines += chance.choice(
            [[f"Content-Length: {length}"]] * 9 + [[f"content-length: 0{length}"], []]
        )
        chance.shuffle(lines)
        if chance.random() < 0.2:
            lines = [self._in_other_case(line) for line in lines]
        if "Transfer-Encoding: chunked" in lines and chance.random() < 0.8:
            lines = [line for line in lines if not line.lower().startswith("content-length")]
            bodies = [
                b"%x\r\n%s\r\n0\r\n\r\n" % (len(one), one) if one else b"0\r\n\r\n"
                for one in bodies
            ]
        line = f"{chance.choice(_METHODS)} {chance.choice(_PATHS)} HTTP/{chance.choice(_VERSIONS)}"
        return "\r\n".join([line, *lines, "", ""]).encode("latin-1"), bodies

    def _in_other_case(self, line: str) -> str:
        name, _, value = line.partition(":")
        return f"{name.swapcase()}:{value}"


def pieces_of(chance: random.Random, requests: list[bytes]) -> list[bytes]:
    """Return what is sent of requests: most often each as a whole."""
    if chance.random() < 0.1:
        requests[-1] = requests[-1][: chance.randrange(len(requests[-1]))]
    pieces = [b""]
    for one in requests:
        if chance.random() < 0.8:
            pieces += [one, b""]
            continue
        cuts = sorted(chance.randrange(len(one) + 1) for _ in range(chance.randint(0, 3)))
        first, *rest = (one[a:b] for a, b in zip([0, *cuts], [*cuts, len(one)], strict=True))
        pieces[-1] += first  # behind the end of the last one
        pieces += rest
    return [piece for piece in pieces if piece]


def settle(house: House) -> None:
    """Have a house serve what was sent, if it is there as a whole."""
    for turn in range(20):
        gevent.idle()  # unlike sleep(0), it has the loop look at the sockets
        if turn and len(house.idle) == len(house.clients):
            break


def play(house: House, seed: int, plan: list[tuple[int, bytes]]) -> list[bytes]:
    """Send pieces, each on a connection, and return what each of these answers in all."""
    chance = random.Random(seed)
    for address in ("10.0.0.3", *ADDRESSES):
        house.connect(address)
    known = house.clients.pop(0)
    for user in _USERS:
        known.sendall(request("/events/t", b"", [HOST, ("Authorization", header(user, "secret"))]))
        whole_answer(known)
    known.close()
    for at, piece in plan:
        with suppress(OSError):  # the connection has ended
            house.clients[at].sendall(piece)
        if chance.random() < 0.8:
            settle(house)
    answers = []
    for client in house.clients:
        data = b""
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)
            while more := client.recv(65536):
                data += more
        answers.append(data)
    house.disconnect()
    return answers


def check(houses: tuple[House, House], seed: int, pool: Pool, chance: random.Random) -> None:
    """Have a round in both, and see that they do the same."""
    what = chance.choice(_CHANGES) if chance.random() < 0.3 else None
    streams = [pieces_of(chance, list(pool.requests())) for _ in ADDRESSES]
    plan = []
    while left := [at for at, pieces in enumerate(streams) if pieces]:
        at = chance.choice(left)
        plan.append((at, streams[at].pop(0)))
    found = []
    for house in houses:
        change(house, what)
        answers = [comparable_bytes(_BY_CHANCE.sub(b"", data)) for data in play(house, seed, plan)]
        found.append((answers, house.stored(), house.reserved(), house.counted()))
    for plain, prepared in zip(*found, strict=True):
        assert plain == prepared, f"seed {seed}, {what}:\n{plain}\n{prepared}\n{plan}"
    for house in houses:
        assert house.log.failures == []


def law(**given: str) -> None:
    """Check rounds with these settings."""
    given |= {
        "publish_max_batch": "2K",
        "publish_max_message": "600",
        "auth_attempts_per_minute": "0",
        "auth_failures_per_minute": "0",
        "topics_auto_partitions": "2",
    }
    houses = House(prepares=False, **given), House(prepares=True, **given)
    begun = 0
    begin = PreparedPublish.begin

    def begin_and_count(self: PreparedPublish, body: bytes, client: Any) -> Any:
        nonlocal begun
        found = begin(self, body, client)
        begun += found is not None
        return found

    PreparedPublish.begin = begin_and_count  # type: ignore[method-assign]
    first = int(os.environ.get("SOAK_PREPARED_SEED", "0"))
    pool, chance = None, random.Random()
    for seed in range(first, first + ROUNDS):
        if pool is None or seed % ROUNDS_OF_ONE_POOL == 0:
            chance = random.Random(seed)
            pool = Pool(chance)
            for house in houses:
                house.reset_files()
                house.ban("10.0.0.2", banned=False)
        check(houses, seed, pool, chance)
    assert begun > ROUNDS
    for house in houses:
        house.close()


pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 10)]


@partial(under_gevent, seconds=SECONDS)
def test_bytes_of_anonymous_clients_are_answered_as_in_steps() -> None:
    law()


@partial(under_gevent, seconds=SECONDS)
def test_bytes_of_known_clients_are_answered_as_in_steps() -> None:
    law(guarded="yes", cors_origins=PAGE, server_trusted_proxies="10.0.0.1")
