"""Whatever bytes come, the readers of the wire raise ProtocolError or return what they read."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.pulsar import (
    ProtocolError,
    PulsarFrameReader,
    read_broker_entry,
    read_metadata,
    split_payload,
    unpack,
    verify_checksum,
)
from tests.wire.mutating import SECONDS, SEED, command_by_chance, damaged, golden_frames

LIMIT = 1 << 20
READERS = (
    split_payload,
    read_metadata,
    read_broker_entry,
    verify_checksum,
    lambda payload: unpack(payload, LIMIT),
)


def read_everything(data: bytes, step: int) -> int:
    """Read bytes as a stream, and all that its frames hold; return how many frames there were."""
    reader, found = PulsarFrameReader(), 0
    with suppress(ProtocolError):
        for start in range(0, len(data), step):
            for _, payload in reader.receive(data[start : start + step]):
                found += 1
                for read in READERS:
                    with suppress(ProtocolError):
                        read(payload)
    return found


@given(data=st.binary(max_size=400), step=st.integers(1, 50))
def test_bytes_by_chance_are_read_or_refused(data: bytes, step: int) -> None:
    read_everything(data, step)
    for read in READERS:
        with suppress(ProtocolError):
            read(data)


@pytest.mark.no_cover
@pytest.mark.timeout(60 + SECONDS)
def test_damaged_frames_are_read_or_refused() -> None:
    chance, frames = random.Random(SEED), golden_frames()
    payloads = [frame.payload for data in frames for frame in PulsarFrameReader().receive(data)]
    payloads = [payload for payload in payloads if payload]
    read = tried = 0
    end = time.monotonic() + SECONDS / 2
    while time.monotonic() < end:
        data = b"".join(damaged(chance, frames) for _ in range(chance.randint(1, 3)))
        try:
            read += read_everything(data, chance.choice([1, 7, 1 << 16]))
            read += read_everything(command_by_chance(chance, payloads), 1 << 16)
        except Exception as error:
            raise AssertionError(f"seed {SEED}, try {tried}: {data.hex()}") from error
        tried += 1
    # Most damage is inside a frame, so that it was looked at.
    assert read > tried
