"""Owns the hash of keys and of consumers' names, and which of 65,535 slots a hash falls into.

Murmur3 as Apache Pulsar computes it, so that ranges that a client asks for hold the keys that it
expects. What the key of an entry is its format says (`entry_info`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

SLOTS: Final = 1 << 16
"""Slots are numbered from 1; 0 means in Apache Pulsar that there is no hash, and becomes 1."""

_MAX_CACHED_KEY_BYTES: Final = 256
_MASK: Final = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """Return the 32-bit MurmurHash3 (x86) with seed 0, without its sign bit."""
    return _finished(0, data, len(data))


def key_hash(key: bytes) -> int:
    """Return the `murmur3` of a key.

    Keys repeat, and hashing costs a microsecond for every few bytes: that of short ones is cached.
    """
    return _cached_murmur3(key) if len(key) <= _MAX_CACHED_KEY_BYTES else murmur3(key)


_cached_murmur3 = lru_cache(maxsize=16_384)(murmur3)


def murmur3_each(start: bytes, tails: Iterable[bytes]) -> list[int]:
    """Return the hash of `start` with each of the tails behind it, which may be a long way."""
    whole = len(start) & ~3
    h, rest = _through(0, start[:whole]), start[whole:]
    return [_finished(h, rest + tail, len(start) + len(tail)) for tail in tails]


def slot_of_hash(hashed: int) -> int:
    """Return the slot that a hash falls into."""
    return hashed % SLOTS or 1


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
