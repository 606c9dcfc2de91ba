"""Requests that no honest Kafka client sends: of chance, damaged, and with hostile lengths."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from router.broker.kafka.apis import APIS
from router.broker.kafka.client import KafkaApi
from router.kafka.definitions import definition_texts
from router.wire.kafka.definitions import FieldDefinition, StructDefinition, attribute, fields_of
from router.wire.kafka.engine import Messages, request_header_version
from router.wire.kafka.errors import KafkaMessageError
from router.wire.kafka.record_batches import build_batch
from router.wire.kafka.records import write_headers, write_record
from router.wire.kafka.runtime import KafkaMessage

MESSAGES: Final = Messages(definition_texts())
TOPICS: Final = [f"fuzz-{number}" for number in range(4)]
GROUPS: Final = ["g", "h"]
TEXTS: Final = ["", "ünï", "x" * 300, "a/b", "PLAIN", "consumer", "range", *GROUPS, *TOPICS]
NUMBERS: Final = [-(2**31), -2, -1, 0, 0, 0, 1, 1, 2, 3, 7, 255, 10_000, 2**31 - 1]
LENGTHS: Final = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\xff\xff\xff"]
READ_SECONDS: Final = 0.05


def by_chance(chance: random.Random) -> bytes:
    """Return the frame of a request whose fields hold anything."""
    while True:
        api = chance.choice(APIS)
        version = chance.randint(api.served_from or api.versions[0], api.versions[1])
        message = MESSAGES.message(f"{api.name}Request")
        fields = _filled(chance, message, message.definition().struct, version)
        with suppress(KafkaMessageError):
            return frame(chance, api, version, bytes(message(**fields).write(version)))


def frame(chance: random.Random, api: KafkaApi, version: int, body: bytes) -> bytes:
    """Return a request with its header and size."""
    definition = MESSAGES.definition(f"{api.name}Request")
    header: Any = MESSAGES.message("RequestHeader")
    head = header(
        request_api_key=api.key,
        request_api_version=version,
        correlation_id=chance.getrandbits(31),
        client_id=chance.choice([None, "fuzz", "x" * 999]),
    ).write(request_header_version(definition, version))
    return (len(head) + len(body)).to_bytes(4, "big") + bytes(head) + body


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return a frame with damage behind its head; mostly its size fits."""
    broken = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        where = chance.randrange(4, len(broken) + 1)
        kind = chance.randrange(4)
        if kind == 0 and where < len(broken):
            broken[where] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del broken[where : where + chance.randint(1, 8)]
        elif kind == 2:
            broken[where:where] = chance.randbytes(chance.randint(1, 8))
        else:
            broken[where : where + 4] = chance.choice(LENGTHS)
    if chance.random() < 0.9:
        broken[:4] = (len(broken) - 4).to_bytes(4, "big")
    return bytes(broken)


def attack(address: str, chance: random.Random) -> None:
    """Misbehave on one connection until the broker closes it, or nothing is left to say."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 5) as client, suppress(OSError):
        client.settimeout(READ_SECONDS)
        for _ in range(20):
            data = by_chance(chance)
            kind = chance.random()
            if kind < 0.6:
                data = damaged(chance, data)
            elif kind < 0.65:
                data = chance.randbytes(chance.randint(1, 500))
            elif kind < 0.7:
                data = chance.choice(LENGTHS)
            client.sendall(data)
            if chance.random() < 0.5 and not client.recv(1 << 16):
                return
        if chance.random() < 0.5:
            client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            pass


def batch_by_chance(chance: random.Random) -> bytes:
    """Return a batch of records, which may claim or be something else."""
    records = [
        write_record(
            offset,
            chance.choice(NUMBERS),
            chance.choice([None, b"", b"key"]),
            chance.choice([None, b"", b"v" * 70, bytes(9_000)]),
            write_headers([(b"h", None)] * chance.randint(0, 2)),
        )
        for offset in range(chance.randint(1, 5))
    ]
    batch = bytearray(build_batch(records, 1, 2, codec=chance.randrange(5)))
    if chance.random() < 0.5:
        batch[chance.randrange(len(batch))] ^= 1 << chance.randrange(8)
    return bytes(batch) * chance.choice([1, 1, 1, 0, 2])


def _filled(
    chance: random.Random, message: type[KafkaMessage], struct: StructDefinition, version: int
) -> Mapping[str, Any]:
    return {
        attribute(field.name): _value(chance, message, field, version)
        for field in fields_of(struct, version)
        if chance.random() < 0.95
    }


def _value(
    chance: random.Random, message: type[KafkaMessage], field: FieldDefinition, version: int
) -> Any:
    if version in field.nullable and chance.random() < 0.15:
        return None
    if field.type.array:
        return [_one(chance, message, field, version) for _ in range(chance.randrange(4))]
    return _one(chance, message, field, version)


def _one(
    chance: random.Random, message: type[KafkaMessage], field: FieldDefinition, version: int
) -> Any:
    kind = field.type.element
    if field.struct is not None:
        struct: Any = message.STRUCTS[kind]
        return struct(**_filled(chance, message, field.struct, version))
    if kind == "string":
        # Topics of the witness stay out of it.
        return chance.choice(TOPICS if "opic" in field.name or field.name == "Name" else TEXTS)
    if kind == "bytes":
        return chance.randbytes(chance.choice([0, 1, 9, 300]))
    if kind == "records":
        return batch_by_chance(chance)
    if kind == "uuid":
        return chance.choice([bytes(16), chance.randbytes(16)])
    if kind == "bool":
        return chance.random() < 0.5
    return 0.0 if kind == "float64" else _integer(chance, kind)


def _integer(chance: random.Random, kind: str) -> int:
    bits = int(kind.lstrip("uint"))
    unsigned = kind.startswith("u")
    low = 0 if unsigned else -(1 << bits - 1)
    high = (1 << (bits if unsigned else bits - 1)) - 1
    return max(low, min(high, chance.choice([*NUMBERS, low, high])))
