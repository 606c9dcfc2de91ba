"""Frames that no honest client sends: recorded ones that were damaged, and commands by chance."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from router.wire.pulsar import encode
from router.wire.pulsar import pulsar_pb2 as pb

GOLDEN = Path(__file__).with_name("golden")
SECONDS = float(os.environ.get("SOAK_FUZZ_SECONDS", "10"))
SEED = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().getrandbits(32)
# It carries commands that administer the broker, and may delete what the test looks at.
NOT_SENT = {"EXTENSION"}

TOPICS = [f"persistent://public/default/fuzz-{number}" for number in range(4)]
TEXTS = ["", "s", "ünï", "x" * 300, "a/b", "none", "token", "(", ".*", *TOPICS]
NUMBERS = [0, 1, 2, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
BYTES = [b"", b"\x00", b"\xff" * 9, b"{}", b'{"type":"record","name":"R","fields":[]}', bytes(8)]
_SIGNED = {
    FieldDescriptor.CPPTYPE_INT32: 32,
    FieldDescriptor.CPPTYPE_INT64: 64,
}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32: 32, FieldDescriptor.CPPTYPE_UINT64: 64}


def golden_frames() -> list[bytes]:
    """Return every recorded frame."""
    return [
        bytes.fromhex(frame)
        for file in sorted(GOLDEN.glob("*.json"))
        for frame in json.loads(file.read_text("utf-8"))["frames"].values()
    ]


def damaged(chance: random.Random, frames: Sequence[bytes]) -> bytes:
    """Return a frame with some damage; often its sizes fit, so that what is inside is looked at."""
    data = bytearray(chance.choice(frames))
    for _ in range(chance.randint(1, 4)):
        where = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0 and data:
            data[where % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[where : where + chance.randint(1, 8)]
        elif kind == 2:
            data[where:where] = chance.randbytes(chance.randint(1, 8))
        elif kind == 3:
            data[where : where + 4] = chance.choice(NUMBERS[:8]).to_bytes(8, "big")[-4:]
        else:
            other = chance.choice(frames)
            data[where:] = other[chance.randrange(len(other)) :]
    if chance.random() < 0.7 and len(data) > 8:
        data[:4] = (len(data) - 4).to_bytes(4, "big")
        if chance.random() < 0.5:
            data[4:8] = min(len(data) - 8, int.from_bytes(data[4:8], "big")).to_bytes(4, "big")
    return bytes(data)


def command_by_chance(chance: random.Random, payloads: Sequence[bytes]) -> bytes:
    """Return a frame whose command is complete, and whose fields hold anything."""
    fields = [
        field
        for field in pb.BaseCommand.DESCRIPTOR.fields
        if field.message_type is not None and field.name.upper() not in NOT_SENT
    ]
    field = chance.choice(fields)
    command = pb.BaseCommand(type=_type_of(field.number))
    _fill(chance, getattr(command, field.name), 0)
    getattr(command, field.name).SetInParent()
    payload = chance.choice(payloads) if field.name in {"send", "message"} else b""
    return encode(command, payload)


def _type_of(number: int) -> Any:
    """Return the type of the command that is kept in a field of this number."""
    return number if number in pb.BaseCommand.Type.values() else pb.BaseCommand.PING


def _fill(chance: random.Random, message: Any, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        required = field.is_required
        if not required and chance.random() < 0.5:
            continue
        if field.message_type is not None:
            if depth < 3 or required:
                for _ in range(chance.randint(1, 3) if field.is_repeated else 1):
                    inner = getattr(message, field.name)
                    _fill(chance, inner.add() if field.is_repeated else inner, depth + 1)
                    if not field.is_repeated:
                        inner.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).extend(
                _value(chance, field) for _ in range(chance.randint(0, 4))
            )
        else:
            setattr(message, field.name, _value(chance, field))


def _value(chance: random.Random, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind in _SIGNED:
        bits = _SIGNED[kind]
        value = chance.choice(NUMBERS) % 2**bits
        return value - 2**bits if value >= 2 ** (bits - 1) else value
    if kind in _UNSIGNED:
        return chance.choice(NUMBERS) % 2 ** _UNSIGNED[kind]
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return chance.choice(field.enum_type.values).number
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return chance.choice([0.0, -1.5, 1e300])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.choice(BYTES)
    return chance.choice(TOPICS if field.name == "topic" else TEXTS)
