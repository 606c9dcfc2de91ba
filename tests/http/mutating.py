"""Damage to requests, and requests by chance that are nearly HTTP."""

from __future__ import annotations

import random
from typing import Final

_PIECES: Final = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"1", b"-1",
    b"\xff", b"\x7f", b"\x0b", b"%", b"chunked", b"Transfer-Encoding: chunked\r\n", b"HTTP/1.0",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"0\r\n\r\n", b"Connection: close\r\n",
    b"Host: other\r\n", b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n", b"Expect: 100-continue\r\n",
]  # fmt: skip


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Return the request with one to three pieces of damage."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        # Most of it is in the first bytes, where the grammar is.
        where = chance.randrange(min(len(found), 400) + 1)
        kind = chance.randrange(6)
        if kind == 0 and found:
            found[where % len(found)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[where : where + chance.randint(1, 4)]
        elif kind == 2:
            found[where:where] = chance.choice(_PIECES)
        elif kind == 3:
            found[where : where + 2] = chance.choice(_PIECES)
        elif kind == 4:
            piece = found[where : where + chance.randint(1, 30)]
            found[where:where] = piece
        else:
            end = found.find(b"\r\n", where)
            if end >= 0:
                found[end : end + 2] = chance.choice([b"\n", b"\r", b"\r\r\n", b"", b"\r\n "])
    return bytes(found)


def by_chance(chance: random.Random) -> bytes:
    """Return a request made of parts that are each fine, or nearly so."""
    method = chance.choice([b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"FOO"])
    target = chance.choice([b"/topics", b"/events/fuzz", b"/health", b"/%00", b"*", b"http://t/"])
    version = chance.choice([b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/1.2"])
    body = b"x" * chance.choice([0, 0, 1, 5, 300])
    fields = [b"Host: localhost", b"Content-Type: text/plain"]
    lines = [b"%s %s %s" % (method, target, version), *fields]
    framing = chance.randrange(4)
    if framing == 1:
        lines.append(b"Content-Length: %d" % len(body))
    elif framing >= 2 and body:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    else:
        body = b""
    extras = [b"Connection: close", b"Connection: keep-alive", b"Expect: 100-continue", b"X: y",
              b"Accept: */*", b"X-Forwarded-For: 192.0.2.7", b"Upgrade: h2c"]  # fmt: skip
    lines += chance.sample(extras, chance.randint(0, 2))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
