"""Single messages of a topic: peeked at, read by their ids, and the last one.

An answer is the entry's payload, decompressed, and its metadata in headers of Pulsar's names; a
batch comes as the batch that it is, and the official clients take it apart. Text that no header can
hold is left out, other than properties, which are JSON.
"""

from __future__ import annotations

import base64
import json
import re
from functools import partial
from typing import Any, Final

from flask import Response, request

from router.errors import ReadFailedError, TopicNotFoundError
from router.model import Position, TopicName
from router.model.administration import EntryChoice, StoredEntry
from router.web.access import Right
from router.web.forms import answer
from router.web.openapi.description import ReplyDescription, choice, operation
from router.web.openapi.description import number as number_of
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.stats import moment
from router.web.pulsar_admin.subscriptions import SUBSCRIPTION
from router.web.pulsar_admin.topics import message_id
from router.web.pulsar_admin.views import TOPIC, AdminRefusedError, subscription_name
from router.web.requests import MAX_NUMBER, Query, number
from router.wire.pulsar import ProtocolError, read_metadata, split_payload
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar.compression import decompress

MAX_BODY: Final = 64 << 20
_FAILS: Final = (*shapes.READ_FAILS, "read-failed")
_ENTRY: Final = {
    200: ReplyDescription(
        "The entry's payload; its metadata is in headers.", {"application/octet-stream": str}
    )
}
_HEADER: Final = re.compile(r"[\x20-\x7e\xa0-\xff]{1,4096}")
# Fields of the metadata, by how their headers show them.
_AS_TEXT: Final = {
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
_IN_BASE64: Final = {
    "ordering_key": "Base64-ordering-key",
    "schema_version": "Base64-schema-version-b64encoded",
    "encryption_param": "Base64-encryption-param",
}
_FLAGS: Final = ("partition_key_b64_encoded", "null_value", "null_partition_key")
_TIMES: Final = ("publish_time", "event_time", "deliver_at_time")


class AdminMessageViews(ResourceViews):
    """The views of messages."""

    @operation(
        f"GET {SUBSCRIPTION}/position/<position>",
        answers=_ENTRY,
        fails=(*_FAILS, "subscription-not-found"),
        refuses=shapes.ONE,
    )
    def peek(self, subscription: str, position: str, **path: str) -> Response:
        """Answer the nth entry that a subscription did not acknowledge."""
        name, nth = self._topic(Right.SUBSCRIBE, path), max(1, number("position", position))
        choice = EntryChoice(subscription=subscription_name(subscription), nth=nth)
        return entry_response(self._read(name, choice, "Message not found"))

    @operation(
        f"GET {TOPIC}/ledger/<ledger>/entry/<entry>",
        answers=_ENTRY,
        fails=_FAILS,
        refuses=shapes.ONE,
    )
    def message(self, ledger: str, entry: str, **path: str) -> Response:
        """Answer the entry of an id."""
        name, ledger_id = self._topic(Right.SUBSCRIBE, path), number("ledger", ledger)
        choice = EntryChoice(entry=number("entry", entry))
        found = self._read(name, choice, "Message id not found")
        if found.message_id.ledger != ledger_id:
            raise AdminRefusedError(404, "Message id not found")
        return entry_response(found)

    @operation(
        f"GET {TOPIC}/examinemessage",
        choice("initialPosition", ("earliest", "latest"), "From where it is counted."),
        number_of("messagePosition", "Which entry, from 1 on."),
        answers=_ENTRY,
        fails=_FAILS,
        refuses=shapes.ONE,
    )
    def examine(self, **path: str) -> Response:
        """Answer the nth entry from the earliest on, or from the latest back."""
        name, query = self._topic(Right.SUBSCRIBE, path), Query(request.environ)
        begin = query.choice("initialPosition", ("earliest", "latest"), "latest")
        nth = max(1, query.number("messagePosition", 1, MAX_NUMBER))
        choice = EntryChoice(earliest=begin == "earliest", latest=begin == "latest", nth=nth)
        return entry_response(self._read(name, choice, "Message not found"))

    @shapes.reads(
        f"{TOPIC}/lastMessageId", shapes.MESSAGE_ID, "The id.", fails=_FAILS, refuses=shapes.ONE
    )
    def last_message_id(self, **path: str) -> Response:
        """Answer the id of the last message, entry -1 where there is none."""
        name = self._topic(Right.VIEW, path)
        (partition,) = self._inspection.one(name).partitions
        found = self._administration.read_entry(name, EntryChoice(latest=True))
        if found is not None:
            last = found.message_id.batch_index
            if last < 0:
                last = _last_of_batch(found.payload)
            return answer(message_id(found.message_id, last))
        place = Position(partition.ledger, partition.next_entry - 1, partition.partition)
        return answer(message_id(place))

    def _read(self, topic: TopicName, choice: EntryChoice, missing: str) -> StoredEntry:
        if self._administration.partitions(topic):
            raise AdminRefusedError(405, f"{topic} is partitioned: name a partition")
        try:
            found = self._administration.read_entry(topic, choice)
        except TopicNotFoundError:
            raise TopicNotFoundError(f"Topic {topic} not found") from None
        if found is None:
            raise AdminRefusedError(404, missing)
        return found


def _last_of_batch(payload: bytes) -> int:
    """Return the index of an entry's last message, -1: it is no batch; raise ReadFailedError."""
    try:
        metadata = read_metadata(payload)
    except ProtocolError as error:
        raise ReadFailedError(f"the last entry cannot be taken apart: {error}") from error
    return metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1


def entry_response(entry: StoredEntry) -> Response:
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
    shown.headers["X-Pulsar-Message-ID"] = f"{entry.message_id.ledger}:{entry.message_id.entry}"
    for name, value in headers(metadata).items():
        shown.headers[f"X-Pulsar-{name}"] = value
    if metadata.HasField("num_messages_in_batch"):
        shown.headers["X-Pulsar-batch-size"] = str(len(entry.payload) - metadata.ByteSize())
    shown.headers["X-Pulsar-Is-Encrypted"] = str(encrypted).lower()
    return shown


def headers(metadata: Any) -> dict[str, str]:
    """Return the metadata of an entry, by the names of headers without X-Pulsar."""
    made = {"PROPERTY": json.dumps({pair.key: pair.value for pair in metadata.properties})}
    for field, name in _AS_TEXT.items():
        if metadata.HasField(field):
            made[name] = str(getattr(metadata, field))
    for field, name in _IN_BASE64.items():
        if metadata.HasField(field):
            made[name] = base64.b64encode(getattr(metadata, field)).decode()
    for field in filter(partial(getattr, metadata), _FLAGS):
        made[field.replace("_", "-")] = "true"
    for field in filter(partial(getattr, metadata), _TIMES):
        made[field.replace("_", "-")] = moment(getattr(metadata, field))
    if metadata.compression:
        made["compression"] = pb.CompressionType.Name(metadata.compression)
        made["uncompressed-size"] = str(metadata.uncompressed_size)
    # JSON is ASCII, and as long as its properties are.
    return {n: text for n, text in made.items() if n == "PROPERTY" or _HEADER.fullmatch(text)}
