"""The table of failures is total, and keeps apart what clients treat differently."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.consume import NameBusyError
from router.broker.pulsar.failures import TABLE, answer
from router.broker.storage import DamagedError, StoreError
from router.errors import DiskFullError, FencedError, by_code
from router.wire.pulsar import pulsar_pb2 as pb


def test_every_failure_of_the_router_has_a_number() -> None:
    assert set(TABLE) == set(by_code())


@pytest.mark.parametrize(
    ("failure", "number", "beginning"),
    [
        (NameBusyError("Producer is already connected"), pb.ProducerBusy, "Producer is"),
        (DamagedError(1, Path("f"), 2, 3, 4, 5), pb.PersistenceError, "read-failed: ledger 1"),
        (OSError("no file"), pb.PersistenceError, "read-failed: no file"),
        (StoreError("it failed"), pb.PersistenceError, "publish-refused: it failed"),
        (DiskFullError("full"), pb.PersistenceError, "disk-full: full"),
        (FencedError(), pb.NotAllowedError, "fenced: "),
        (ValueError("secret"), pb.UnknownError, "internal: an internal error"),
    ],
)
def test_sentence_begins_with_the_code(
    failure: Exception, number: pb.ServerError, beginning: str
) -> None:
    told, sentence = answer(failure)
    assert told == number
    assert sentence.startswith(beginning)
