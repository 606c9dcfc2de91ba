"""The differences between the router's broker and Apache Pulsar that official clients observe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """What a scenario shows on our broker and on Apache Pulsar, and why that is so."""

    ours: Any
    apache: Any
    why: str


_NAMES = {
    "persistent://NS/with space": "ok",
    "persistent://NS/a/b/c": "Timeout",
    "persistent://NS/": "InvalidTopicName",
    "persistent://public": "InvalidTopicName",
    "queue://a/b/x": "InvalidTopicName",
    "persistent://NS/ünï": "ok",
    "persistent://NS/per%2Fcent": "ok",
    "persistent://no-such-tenant/ns/x": "TopicNotFound",
    "persistent://public/no-such-namespace/x": "TopicNotFound",
    "non-persistent://NS/fine": "ok",
}
_SUBSCRIPTIONS = {
    "with space": "ok",
    "sl/ash": "ok",
    "ünï": "ok",
    "aaaaaaaaaaaa": "ok",
    "per%2Fcent": "ok",
}

# The last but one of each: a record with other fields, which all have defaults.
_RECORDS = {
    "AVRO": [1, -2, "AVRO", "-2", 2, "IncompatibleSchemaException", "IncompatibleSchemaException"],
    "JSON": [1, -2, "JSON", "-2", 2, "IncompatibleSchemaException", "IncompatibleSchemaException"],
}
_COMPACTED_OUT = (
    "messages of a batch that a compacted topic leaves out are not delivered; Apache Pulsar marks"
    " them, and its clients in C++, Python and Go deliver them without key and value"
)

DIFFERENCES: dict[str, Difference] = {
    "topics.names": Difference(
        # An InvalidTopicName, after which the C++ client tries again until its time is over.
        ours=_NAMES
        | {
            "persistent://NS/with space": "Timeout",
            "persistent://NS/ünï": "Timeout",
            "persistent://NS/per%2Fcent": "Timeout",
        },
        apache=_NAMES,
        why="topic names have only characters that all protocols of the router accept: "
        "A-Z a-z 0-9 . _ -",
    ),
    "subscribing.names_of_subscriptions": Difference(
        ours=_SUBSCRIPTIONS | {"": "NotAllowedError"},
        apache=_SUBSCRIPTIONS | {"": "InvalidConfiguration"},
        why="an empty name is refused with NotAllowedError; Apache Pulsar answers ProducerBusy",
    ),
    "administering.a_subscription_that_is_not_there": Difference(
        ours={"peek": 404, "skip": 404, "reset": 404, "delete": 404, "there now": "[]"},
        apache={"peek": 200, "skip": 204, "reset": 204, "delete": 404, "there now": '["missing"]'},
        why="a call for a subscription that does not exist answers 404; Apache Pulsar creates the"
        " subscription",
    ),
    "administering.a_subscription_of_a_topic_that_is_not_there": Difference(
        ours=404,
        apache=204,
        why="a subscription of a topic that does not exist answers 404; Apache Pulsar creates both",
    ),
    "administering.a_schema_of_another_kind": Difference(
        ours={"posted": 409, "tested": 202},
        apache={"posted": 409, "tested": 500},
        why="a compatibility check of a schema of another type answers that it is not compatible;"
        " Apache Pulsar answers 500",
    ),
    "administering.compaction_of_a_partitioned_topic": Difference(
        ours=[204, 200],
        apache=[204, 404],
        why="the status of the compaction of a partitioned topic is that of the partition that is"
        " the least done; Apache Pulsar answers 404",
    ),
    "reading.compacted_of_a_batch": Difference(
        ours=["v2", "v3", "v4", "v5"], apache=["", "", "v2", "v3", "v4", "v5"], why=_COMPACTED_OUT
    ),
    "go.compactedBatch": Difference(
        ours=["v2", "v3", "v4", "v5", "m0", "m1"],
        apache=["", "", "v2", "v3", "v4", "v5", "m0", "m1"],
        why=_COMPACTED_OUT,
    ),
    "go.transactions": Difference(
        ours=[True, "<nil>", True, True, "<nil>", True, ["m0", "m1"], []],
        apache=[True, "<nil>", True, True, "<nil>", True, ["m0", "m1", "m0", "m1"], []],
        why="Messages of an aborted transaction are deleted for everyone; Apache Pulsar delivers"
        " those whose metadata does not name it, as of its Go client",
    ),
    "java.recordsOfAvroAndJson": Difference(
        ours=_RECORDS
        | {"AVRO": [1, -2, "AVRO", "-2", 2, "nothing", "IncompatibleSchemaException"]},
        apache=_RECORDS,
        why="the default of schemas.compatibility is BACKWARD; Apache Pulsar's own default is FULL",
    ),
}

# The first part of a difference's name where the scenario is a program's, not one of Python's.
LANGUAGES = frozenset({"java", "go"})


def check(name: str, here: Any, there: Any, again: Callable[[], Any]) -> None:
    """Compare what a scenario shows on our broker and on Apache Pulsar.

    `again` runs it on Apache Pulsar once more: that is the measure, and on a busy machine some
    clients lose a message there.
    """
    if not _is_expected(name, here, there):
        there = again()
    assert not _ended(here), here
    assert not _ended(there), there
    if (difference := DIFFERENCES.get(name)) is None:
        assert here == there, f"on Apache Pulsar {there}"
    else:
        assert (here, there) == (difference.ours, difference.apache)
        assert here != there, "this is no difference any more"


def _is_expected(name: str, here: Any, there: Any) -> bool:
    difference = DIFFERENCES.get(name)
    return there == (here if difference is None else difference.apache) and not _ended(there)


def _ended(shown: Any) -> bool:
    """Return whether a scenario did not come to its end, which proves nothing on either broker."""
    return isinstance(shown, str) and shown.startswith(("ended by", "did not end"))
