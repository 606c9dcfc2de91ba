"""Batches of Kafka's records as tests take them apart and place them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from router.wire.kafka.record_batches import BatchHeader, Bytes, read_header, whole_batch_end


def split_batches(data: Bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield each batch with its header; a last one that is cut short ends it."""
    view, at = memoryview(data), 0
    while (end := whole_batch_end(view, at)) > 0:
        yield read_header(view, at), view[at:end]
        at = end


def batch_prefix(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """Return the first bytes of a batch as a partition stores it; the CRC stays right."""
    return struct.pack(">qii", base_offset, header.length, leader_epoch)
