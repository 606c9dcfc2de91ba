"""Single messages of a topic: peeked at, read by their ids, and the last one.

An answer is the entry's payload, decompressed, and its metadata in headers of Pulsar's names; a
batch comes as the batch that it is, and the official clients take it apart. Text that no header can
hold is left out, other than properties, which are JSON.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

from flask import Blueprint, Response, request

from router.backends.embedded.administration import Administration
from router.errors import ReadFailedError, TopicNotFoundError
from router.model import TopicName
from router.web.access import Right
from router.web.openapi.description import (
    TEXT,
    Reply,
    answers_json,
    choice,
    operation,
)
from router.web.openapi.description import number as number_of
from router.web.parameters import MAX_NUMBER, Query, number
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.door import Door
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.paths import TOPIC, answer, subscription_name
from router.web.pulsar_admin.stats import Looking, moment
from router.web.pulsar_admin.subscriptions import SUBSCRIPTION
from router.web.pulsar_admin.topics import message_id
from router.wire.pulsar import ProtocolError, read_metadata, split_payload
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar.compression import decompress

MAX_BODY: Final = 64 << 20
_HEADER: Final = re.compile(r"[\x20-\x7e\xa0-\xff]{1,4096}")
# Fields of the metadata whose value is told as it is.
_PLAIN: Final = {
    "producer_name": "producer-name",
    "sequence_id": "sequence-id",
    "replicated_from": "replicated-from",
    "partition_key": "partition-key",
    "encryption_algo": "encryption-algo",
    "marker_type": "marker-type",
    "uuid": "uuid",
    "num_chunks_from_msg": "num-chunks-from-msg",
    "total_chunk_msg_size": "total-chunk-msg-size",
    "chunk_id": "chunk-id",
    "num_messages_in_batch": "num-batch-message",
}
_FLAGS: Final = {
    "partition_key_b64_encoded": "partition-key-b64-encoded",
    "null_value": "null-value",
    "null_partition_key": "null-partition-key",
}
_BYTES: Final = {
    "ordering_key": "Base64-ordering-key",
    "schema_version": "Base64-schema-version-b64encoded",
    "encryption_param": "Base64-encryption-param",
}
_TIMES: Final = {
    "publish_time": "publish-time",
    "event_time": "event-time",
    "deliver_at_time": "deliver-at-time",
}


class MessageViews:
    """The views of messages."""

    def __init__(self, door: Door, administration: Administration) -> None:
        self._door = door
        self._administration = administration
        self._looking = Looking(administration)

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(f"{SUBSCRIPTION}/position/<position>")(self.peek)
        routes.get(f"{TOPIC}/ledger/<ledger>/entry/<entry>")(self.message)
        routes.get(f"{TOPIC}/examinemessage")(self.examine)
        routes.get(f"{TOPIC}/lastMessageId")(self.last_message_id)

    @operation(
        answers={
            200: Reply(
                "The entry's payload; its metadata is in headers.",
                {"application/octet-stream": TEXT},
            )
        },
        fails=(*shapes.LOOKING, "subscription-not-found", "read-failed"),
        refuses=shapes.ONE,
    )
    def peek(self, subscription: str, position: str, **path: str) -> Response:
        """Answer the nth entry that a subscription did not acknowledge."""
        name = self._readable(path)
        nth = max(1, number("position", position))
        asked = pb.ReadEntry(topic=str(name), subscription=subscription_name(subscription), nth=nth)
        return told(self._read(name, asked, "Message not found"))

    @operation(
        answers={
            200: Reply(
                "The entry's payload; its metadata is in headers.",
                {"application/octet-stream": TEXT},
            )
        },
        fails=(*shapes.LOOKING, "read-failed"),
        refuses=shapes.ONE,
    )
    def message(self, ledger: str, entry: str, **path: str) -> Response:
        """Answer the entry of an id."""
        name = self._readable(path)
        wanted = number("ledger", ledger)
        asked = pb.ReadEntry(topic=str(name), entry=number("entry", entry))
        found = self._read(name, asked, "Message id not found")
        if found.message_id.ledgerId != wanted:
            raise RefusedError(404, "Message id not found")
        return told(found)

    @operation(
        choice("initialPosition", ("earliest", "latest"), "From where it is counted."),
        number_of("messagePosition", "Which entry, from 1 on."),
        answers={
            200: Reply(
                "The entry's payload; its metadata is in headers.",
                {"application/octet-stream": TEXT},
            )
        },
        fails=(*shapes.LOOKING, "read-failed"),
        refuses=shapes.ONE,
    )
    def examine(self, **path: str) -> Response:
        """Answer the nth entry from the earliest on, or from the latest back."""
        name = self._readable(path)
        query = Query(request.environ)
        begin = query.choice("initialPosition", ("earliest", "latest"), "latest")
        nth = max(1, query.number("messagePosition", 1, MAX_NUMBER))
        asked = pb.ReadEntry(topic=str(name), nth=nth)
        setattr(asked, begin, True)
        return told(self._read(name, asked, "Message not found"))

    @operation(
        answers=answers_json(shapes.MESSAGE_ID, "The id."),
        fails=(*shapes.LOOKING, "read-failed"),
        refuses=shapes.ONE,
    )
    def last_message_id(self, **path: str) -> Response:
        """Answer the id of the last message, entry -1 where there is none."""
        name = self._door.topic(Right.VIEW, path).topic
        (partition,) = self._looking.one(name).partitions
        where = pb.MessageIdData(
            ledgerId=partition.ledger_id,
            entryId=partition.next_entry - 1 if partition.next_entry else 2**64 - 1,
            partition=partition.partition,
        )
        asked = pb.ReadEntry(topic=str(name), latest=True)
        found = self._administration.ask(pb.CommandAdmin(read_entry=asked))
        batch = -1
        if found.HasField("entry"):
            where, batch = found.entry.message_id, _last_of_batch(found.entry.payload)
        return answer(message_id(where, batch))

    def _readable(self, path: dict[str, str]) -> TopicName:
        return self._door.topic(Right.SUBSCRIBE, path).topic

    def _read(self, topic: TopicName, asked: pb.ReadEntry, missing: str) -> Any:
        if self._administration.partitions(str(topic)):
            raise RefusedError(405, f"{topic} is partitioned: name a partition")
        try:
            found = self._administration.ask(pb.CommandAdmin(read_entry=asked))
        except TopicNotFoundError:
            raise TopicNotFoundError(f"Topic {topic} not found") from None
        if not found.HasField("entry"):
            raise RefusedError(404, missing)
        return found.entry


def _last_of_batch(payload: bytes) -> int:
    """Return the index of an entry's last message, -1: it is no batch; raise ReadFailedError."""
    try:
        metadata = read_metadata(payload)
    except ProtocolError as error:
        raise ReadFailedError(f"the last entry cannot be taken apart: {error}") from error
    return metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1


def told(entry: Any) -> Response:
    """Return the answer that shows an entry; raise ReadFailedError."""
    try:
        parts = split_payload(entry.payload)
        metadata = parts.metadata
        encrypted = bool(metadata.encryption_keys)
        body = bytes(parts.body)
        if metadata.compression and not encrypted:
            size = min(metadata.uncompressed_size, MAX_BODY)
            body = decompress(metadata.compression, body, size)
    except ProtocolError as error:
        raise ReadFailedError(f"the entry cannot be taken apart: {error}") from error
    shown = Response(body, mimetype="application/octet-stream")
    shown.headers["X-Pulsar-Message-ID"] = f"{entry.message_id.ledgerId}:{entry.message_id.entryId}"
    for name, value in headers(metadata).items():
        shown.headers[f"X-Pulsar-{name}"] = value
    if metadata.HasField("num_messages_in_batch"):
        shown.headers["X-Pulsar-batch-size"] = str(len(entry.payload) - metadata.ByteSize())
    shown.headers["X-Pulsar-Is-Encrypted"] = str(encrypted).lower()
    return shown


def headers(metadata: Any) -> dict[str, str]:
    """Return what the metadata of an entry says, by the names of headers without X-Pulsar."""
    made = {"PROPERTY": json.dumps({pair.key: pair.value for pair in metadata.properties})}
    for field, name in _PLAIN.items():
        if metadata.HasField(field):
            made[name] = str(getattr(metadata, field))
    for field, name in _FLAGS.items():
        if getattr(metadata, field):
            made[name] = "true"
    for field, name in _BYTES.items():
        if metadata.HasField(field):
            made[name] = base64.b64encode(getattr(metadata, field)).decode()
    for field, name in _TIMES.items():
        if getattr(metadata, field):
            made[name] = moment(getattr(metadata, field))
    if metadata.compression:
        made["compression"] = pb.CompressionType.Name(metadata.compression)
        made["uncompressed-size"] = str(metadata.uncompressed_size)
    # JSON is ASCII, and as long as its properties are.
    return {n: text for n, text in made.items() if n == "PROPERTY" or _HEADER.fullmatch(text)}
