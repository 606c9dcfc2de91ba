"""The errors of reading and writing Kafka messages and records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class KafkaMessageError(Exception):
    """A message cannot be read or written; `str()` names message, field and what is wrong."""

    def __init__(self, message: str, version: int, field: str, sentence: str) -> None:
        super().__init__(f"{message} v{version}{f', {field}' if field else ''}: {sentence}")
        self.message = message
        self.version = version
        self.field = field
        self.sentence = sentence


class MalformedMessageError(KafkaMessageError):
    """Bytes or JSON are no message of this name and version."""


class TooManyElementsError(Exception):
    """A message has more elements of arrays, and unknown tagged fields, than its reader takes."""


class UnwritableMessageError(KafkaMessageError):
    """A message holds what its version cannot carry, or a value that is not of the field's type."""


class UnsupportedVersionError(KafkaMessageError):
    """The message has no such version."""


class RecordsError(Exception):
    """Record batches cannot be taken; `error_code` is Kafka's code for the cause."""

    error_code: ClassVar[int]


class CorruptRecordsError(RecordsError):
    """Bytes are no whole batch, have a wrong CRC, or cannot be decompressed (CORRUPT_MESSAGE)."""

    error_code = 2


class OversizedRecordsError(RecordsError):
    """Records have more bytes without their compression, or are more, than allowed.

    The code is MESSAGE_TOO_LARGE.
    """

    error_code = 10


class UnknownCompressionError(RecordsError):
    """A codec that Kafka does not define (UNSUPPORTED_COMPRESSION_TYPE)."""

    error_code = 76


class InvalidRecordsError(RecordsError):
    """A batch contradicts itself: counts, offsets, lengths of fields (INVALID_RECORD)."""

    error_code = 87


class KeylessRecordsError(RecordsError):
    """Records of a compacted topic have no key, those at `places` in the batch (INVALID_RECORD)."""

    error_code = 87

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__(f"records without a key: {len(places)}. The topic is compacted")
        self.places = places


class OldRecordFormatError(InvalidRecordsError):
    """Records of the format 0 or 1, which brokers before Kafka 0.11 wrote.

    Apache Kafka 4 refuses them in a PRODUCE request with INVALID_RECORD.
    """
