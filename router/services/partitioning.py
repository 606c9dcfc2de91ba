"""Which partition of a topic a message goes to: Kafka's murmur2 of its key.

Kafka's own producers place keys with the same function, so one key keeps its order whatever dialect
its publishers speak. Pulsar's clients default to another hash; a topic that is published to from
both sides keeps a key's order within each side only.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from router.model import NOT_PARTITIONED

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SHORT: Final = 64


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key; NOT_PARTITIONED where the topic has none."""
    if partitions <= 1:
        return 0 if partitions else NOT_PARTITIONED
    hashed = _remembered(key) if len(key) <= _SHORT else murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash as Kafka's clients compute it, as an unsigned number."""
    h = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


# Keys repeat and hashing costs a microsecond for every four bytes; short ones only, so that the
# memory has a bound.
_remembered = lru_cache(maxsize=16_384)(murmur2)
