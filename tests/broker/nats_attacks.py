"""What no honest NATS client sends: lines of chance, damaged ones, and hostile sizes."""

from __future__ import annotations

import json
import random
import socket
from contextlib import suppress
from typing import Final

SUBJECTS: Final = [
    *("a", "a.b", "a.*", ">", "a.>", "*.*", "a..b", ".a", "a.", "", "a b", "ünï.x", "a\0b"),
    *("fuzz.1", "fuzz.*", "_INBOX.x.1", "_INBOX.>", "$JS.API.INFO", "$JS.API.STREAM.CREATE.FUZZ"),
    *("$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.FUZZ", "$JS.API.STREAM.PURGE.FUZZ", "$JS.API.>"),
    *(
        "$JS.API.CONSUMER.CREATE.FUZZ",
        "$JS.API.CONSUMER.MSG.NEXT.FUZZ.C",
        "$JS.API.STREAM.UPDATE.FUZZ",
    ),
    *("$JS.API.CONSUMER.DURABLE.CREATE.FUZZ.C", "$JS.API.DIRECT.GET.FUZZ", "$JS.FC.FUZZ.C.x"),
    *("$JS.API.STREAM.MSG.GET.FUZZ", "$JS.API.STREAM.MSG.DELETE.FUZZ", "$JS.ACK.FUZZ.C.1.1.1.1.1"),
    *("$JS.ACK.FUZZ.C", "$JS.ACK.x.y.z.1.2.3.4", "$SYS.REQ", "x" * 4_000, ".".join("a" * 2_000)),
]
TEXTS: Final = [
    "",
    "FUZZ",
    "C",
    "fuzz.>",
    "a" * 300,
    "ünï",
    ">",
    "limits",
    "workqueue",
    "all",
    "none",
]
NUMBERS: Final = [-(2**63), -1, 0, 1, 2, 3, 100, 10**9, 2**31, 2**63 - 1, 2**64, 0.5, 1e300]
FIELDS: Final = [
    *("name", "subjects", "retention", "max_msgs", "max_bytes", "max_age", "discard", "storage"),
    *(
        "max_msgs_per_subject",
        "duplicate_window",
        "allow_direct",
        "stream_name",
        "config",
        "action",
    ),
    *(
        "durable_name",
        "deliver_subject",
        "ack_policy",
        "ack_wait",
        "max_deliver",
        "backoff",
        "batch",
    ),
    *(
        "filter_subject",
        "filter_subjects",
        "expires",
        "no_wait",
        "idle_heartbeat",
        "max_ack_pending",
    ),
    *("seq", "keep", "filter", "last_by_subj", "next_by_subj", "offset", "subject", "pause_until"),
]
VERBS: Final = [
    "PUB",
    "HPUB",
    "SUB",
    "UNSUB",
    "PING",
    "PONG",
    "CONNECT",
    "INFO",
    "MSG",
    "+OK",
    "GET",
]
LENGTHS: Final = [
    "-1",
    "0",
    "1",
    "007",
    "1048576",
    "1048577",
    "99999999999999999999",
    "0x10",
    "1 2 3",
]
HEADERS: Final = [
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Rollup: all\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Sequence: x\r\n:\r\nA\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"nats/9",
    b"\r\n" * 9,
]
READ_SECONDS: Final = 0.05


def by_chance(chance: random.Random) -> bytes:
    """Return an operation that is well formed more often than not."""
    verb, subject = chance.choice(VERBS[:4]), chance.choice(SUBJECTS)
    reply = chance.choice(["", "", " _INBOX.x.1", " a", " $JS.API.STREAM.DELETE.FUZZ"])
    if verb == "SUB":
        queue = chance.choice(["", "", " q", " q r"])
        return f"SUB {subject}{queue} {chance.randint(0, 30)}\r\n".encode()
    if verb == "UNSUB":
        return f"UNSUB {chance.randint(0, 30)} {chance.choice(LENGTHS)}\r\n".encode()
    payload = _payload(chance)
    if verb == "PUB":
        return f"PUB {subject}{reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
    headers = chance.choice(HEADERS)
    sizes = f"{len(headers)} {len(headers) + len(payload)}"
    return f"HPUB {subject}{reply} {sizes}\r\n".encode() + headers + payload + b"\r\n"


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return an operation with damage."""
    broken = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        where = chance.randrange(len(broken) + 1)
        kind = chance.randrange(4)
        if kind == 0 and where < len(broken):
            broken[where] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del broken[where : where + chance.randint(1, 8)]
        elif kind == 2:
            broken[where:where] = chance.choice([b"\r\n", b"\n", b" ", b"\t", b"\0", b"PING\r\n"])
        else:
            broken[where:where] = chance.randbytes(chance.randint(1, 8))
    return bytes(broken)


def garbage(chance: random.Random) -> bytes:
    """Return a line of a verb and anything."""
    words = [chance.choice([*LENGTHS, *SUBJECTS]) for _ in range(chance.randint(0, 4))]
    return " ".join([chance.choice(VERBS), *words, ""]).encode() + chance.choice(
        [b"\r\n", b"\n", b""]
    )


def attack(address: str, chance: random.Random) -> None:
    """Misbehave on one connection until the broker closes it, or nothing is left to say."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as client, suppress(OSError):
        client.settimeout(READ_SECONDS)
        if chance.random() < 0.8:
            flags = {
                name: chance.random() < 0.5 for name in ("verbose", "pedantic", "echo", "headers")
            }
            client.sendall(b"CONNECT " + json.dumps(flags).encode() + b"\r\n")
        for _ in range(30):
            data, kind = by_chance(chance), chance.random()
            if kind < 0.2:
                data = damaged(chance, data)
            elif kind < 0.25:
                data = garbage(chance)
            client.sendall(data)
            if chance.random() < 0.1 and not client.recv(1 << 16):
                return
        if chance.random() < 0.5:
            client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass


def _payload(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.6:
        return json.dumps(_object(chance, 2)).encode()
    if kind < 0.8:
        acks = [b"+ACK", b"-NAK", b"+TERM x", b"+WPI", b"+NXT {}", b'-NAK {"delay":-1}', b"-NAK {"]
        return chance.choice([b"", b"[", b"10", *acks])
    return chance.randbytes(chance.choice([1, 9, 3_000]))


def _object(chance: random.Random, depth: int) -> dict[str, object]:
    return {chance.choice(FIELDS): _value(chance, depth) for _ in range(chance.randint(0, 6))}


def _value(chance: random.Random, depth: int) -> object:
    kind = chance.randrange(6 if depth else 4)
    if kind == 0:
        return chance.choice(NUMBERS)
    if kind == 1:
        return chance.choice([True, False, None])
    if kind == 5:
        return [_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return _object(chance, depth - 1) if kind == 4 else chance.choice(TEXTS)
