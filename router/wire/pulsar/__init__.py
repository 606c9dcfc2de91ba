"""The Pulsar binary protocol without I/O: frames, payloads, batches and compression."""

from router.wire import ProtocolError
from router.wire.pulsar.batches import (
    MAX_BATCH,
    OURS,
    OversizedError,
    Unpacked,
    is_batch,
    keep_messages,
    pack,
    shared_header,
    unpack,
)
from router.wire.pulsar.columns import Columns, index_of_first, unpack_columns
from router.wire.pulsar.compression import compress, decompress
from router.wire.pulsar.event_times import latest_event_time
from router.wire.pulsar.frames import (
    FRAME_LIMIT,
    MAX_MESSAGE_SIZE,
    Frame,
    PulsarFrameReader,
    command,
    encode,
    encode_parts,
)
from router.wire.pulsar.payloads import (
    Payload,
    broker_entry_prefix,
    join_payload,
    read_broker_entry,
    read_metadata,
    read_sound,
    split_payload,
    verify_checksum,
)
from router.wire.pulsar.strict import StrictReader

__all__ = [
    "FRAME_LIMIT",
    "MAX_BATCH",
    "MAX_MESSAGE_SIZE",
    "OURS",
    "Columns",
    "Frame",
    "OversizedError",
    "Payload",
    "ProtocolError",
    "PulsarFrameReader",
    "StrictReader",
    "Unpacked",
    "broker_entry_prefix",
    "command",
    "compress",
    "decompress",
    "encode",
    "encode_parts",
    "index_of_first",
    "is_batch",
    "join_payload",
    "keep_messages",
    "latest_event_time",
    "pack",
    "read_broker_entry",
    "read_metadata",
    "read_sound",
    "shared_header",
    "split_payload",
    "unpack",
    "unpack_columns",
    "verify_checksum",
]
