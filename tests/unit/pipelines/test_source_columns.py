"""Messages that are gathered to record batches, and what of Kafka's headers are properties."""

from __future__ import annotations

import pytest

from router.pipelines.source_columns import KAFKA, Gathered
from router.wire.kafka import record_messages
from router.wire.pulsar import Columns


@pytest.mark.parametrize("column", ["keys", "values", "properties"])
def test_size_grows_with_everything_that_a_message_brings(column: str) -> None:
    empty = Columns(range(2), [None, None], [b"", b""], [{}, {}], [None, None], 1, 2)
    more = {
        "keys": empty._replace(keys=[b"x" * 900, None]),
        "values": empty._replace(values=[None, b"x" * 900]),
        "properties": empty._replace(properties=[{"name": "x" * 900}, {}]),
    }[column]
    gathered = Gathered("t", 0)
    gathered.add(empty, "1:0", None)
    before = gathered.size
    gathered.add(more, "1:1", None)
    assert gathered.size >= before + 900
    assert gathered.take().num_rows == 4
    assert gathered.size == 0


def test_headers_that_the_router_writes_are_no_properties() -> None:
    (properties,) = (column for column in KAFKA if column.endswith(" AS properties"))
    constants = [text for text in vars(record_messages).values() if str(text).startswith("router-")]
    # That one is a property, made of what properties cannot carry.
    ours = set(constants) - {record_messages.ALL_HEADERS}
    assert len(ours) == 4
    assert [name for name in ours if f"'{name}'" not in properties] == []
