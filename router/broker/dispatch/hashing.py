"""Owns the hash of a key: which of 65,535 slots a message of a Key_Shared subscription falls into.

Murmur3 as Apache Pulsar computes it, so that ranges that a client asks for hold the keys that it
expects. The key is the one of the entry: a batch has the key of its first message.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from router.wire.pulsar import pulsar_pb2 as pb

SLOTS: Final = 1 << 16
"""Slots are numbered from 1; 0 means in Apache Pulsar that there is no hash, and becomes 1."""

_SHORT: Final = 256
_MASK: Final = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """Return the 32-bit MurmurHash3 (x86) with seed 0, without its sign bit."""
    return _finished(0, data, len(data))


def murmur3_each(start: bytes, tails: Iterable[bytes]) -> list[int]:
    """Return the hash of `start` with each of the tails behind it, which may be a long way."""
    whole = len(start) & ~3
    h, rest = _through(0, start[:whole]), start[whole:]
    return [_finished(h, rest + tail, len(start) + len(tail)) for tail in tails]


def slot_of_hash(hashed: int) -> int:
    """Return the slot that a hash falls into."""
    return hashed % SLOTS or 1


def slot_of(key: bytes) -> int:
    """Return the slot of a key, from 1 to 65,535."""
    # Keys repeat, and hashing costs a microsecond for every few bytes; short ones only, so that
    # what is remembered has a bound.
    return _remembered(key) if len(key) <= _SHORT else _slot(key)


def sticky_key(metadata: pb.MessageMetadata) -> bytes:
    """Return what decides which consumer gets an entry; without any key, each entry has its own."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = metadata.partition_key.encode()
        return _decoded(key) if metadata.partition_key_b64_encoded else key
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def _decoded(key: bytes) -> bytes:
    try:
        return b64decode(key, validate=True)
    except Error:
        # Said to be base64 and is not. Any key serves, so long as it is always the same.
        return key


def _through(h: int, data: bytes) -> int:
    for at in range(0, len(data), 4):
        h ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        h = (h << 13 & _MASK | h >> 19) * 5 + 0xE6546B64 & _MASK
    return h


def _finished(h: int, data: bytes, size: int) -> int:
    whole = len(data) & ~3
    h = _through(h, data[:whole])
    if rest := data[whole:]:
        h ^= _mixed(int.from_bytes(rest, "little"))
    h ^= size
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return (h ^ h >> 16) & 0x7FFFFFFF


def _mixed(k: int) -> int:
    k = k * 0xCC9E2D51 & _MASK
    return (k << 15 & _MASK | k >> 17) * 0x1B873593 & _MASK


def _slot(key: bytes) -> int:
    return slot_of_hash(murmur3(key))


_remembered = lru_cache(maxsize=16_384)(_slot)
