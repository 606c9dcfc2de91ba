"""Offsets of Kafka's clients as positions, by where the messages live."""

from __future__ import annotations

from typing import Any

import pytest

from router.errors import NotSupportedError
from router.model import Position, TopicName
from router.services.message_offsets import MessageOffsets

T = TopicName.parse("t")


class Calls:
    def call(self, name: str, **arguments: Any) -> Any:
        assert (name, arguments) == ("entry_at", {"topic": str(T), "partition": 2, "number": 1500})
        return [7, 300, 4]


def test_offset_is_the_brokers_or_an_entry_of_kafka() -> None:
    assert MessageOffsets(Calls(), kafka=False).position(T, 2, 1500) == Position(7, 300, 2, 4)
    assert MessageOffsets(None, kafka=True).position(T, 2, 1500) == Position(0, 1500, 2)
    with pytest.raises(NotSupportedError, match="of Kafka only"):
        MessageOffsets(None, kafka=False).position(T, 2, 1500)
