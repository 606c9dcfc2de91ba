"""Ack tokens: the text that names the messages of one answer, so that a later poll can acknowledge.

Theory of operation. A token holds, for each partition of an answer, where the answer begins and
ends there. The end has the epoch of the subscription, which a reset changes: the store refuses
what was received before one. A store without epochs (Apache Pulsar) cannot. There the beginning is
compared with where the subscription stands (`OpenPartitions`). Up to the end of the answer every
message was acknowledged before or is in the answer, so a late token never skips a message.

A token is signed for its consumer with a secret that all nodes share: it is read by any worker of
any node, and none but an answer's own is. The alternative, keeping answers at the node until they
are acknowledged, would need memory for each consumer, and would lose them with the process.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from router.errors import BadReadOptionError
from router.model import ConsumerId, Position
from router.services.shared_secret import SharedSecret
from router.sharing.registry import Registry

MAX_TOKEN_PARTITIONS: Final = 32
"""Partitions of one answer: a token has to fit into a request line."""
_SIGNATURE_BYTES: Final = 16
_RANGE: Final = Struct(">iqqqqiiq")
MAX_TOKEN_CHARACTERS: Final = ((_SIGNATURE_BYTES + MAX_TOKEN_PARTITIONS * _RANGE.size) * 4 + 2) // 3


@dataclass(frozen=True, slots=True)
class AnsweredRange:
    """The first and the last message of one partition in an answer; the first only by its entry."""

    first: Position
    last: Position


class AckTokens:
    """Writes and reads tokens; calls may be made from many threads or greenlets."""

    NAME: Final = "ack-token"

    def __init__(self, registry: Registry, timeout: float) -> None:
        self._secret = SharedSecret(registry, self.NAME, timeout)

    def write(self, consumer: ConsumerId, ranges: Iterable[AnsweredRange]) -> str:
        """Return the token of an answer to a consumer; raise what the registry raises."""
        data = b"".join(map(_packed, ranges))
        signed = self._signature(consumer, data) + data
        return urlsafe_b64encode(signed).rstrip(b"=").decode()

    def read(self, consumer: ConsumerId, token: str) -> Mapping[int, AnsweredRange]:
        """Return what was answered, by partition.

        Raises BadReadOptionError for a token that is not of an answer to this consumer.
        """
        try:
            signed = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            signed = b""
        signature, data = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(consumer, data)):
            raise BadReadOptionError(
                "ack: expected next, explicit, or the Ack-Token of an answer to consumer"
                f" {consumer.name} of group {consumer.subscription.name} on topic"
                f" {consumer.subscription.topic.local}."
            )
        return {one.last.partition: one for one in map(_unpacked, _RANGE.iter_unpack(data))}

    def _signature(self, consumer: ConsumerId, data: bytes) -> bytes:
        subscription = consumer.subscription
        names = (str(subscription.topic), subscription.name, consumer.name)
        # No name has a line break.
        signed = "\n".join(names).encode() + b"\n" + data
        return hmac.digest(self._secret.get(), signed, "sha256")[:_SIGNATURE_BYTES]


def _packed(answered: AnsweredRange) -> bytes:
    first, last = answered.first, answered.last
    return _RANGE.pack(
        *(last.partition, first.ledger, first.entry, last.ledger, last.entry),
        *(last.batch_index, last.batch_size, last.epoch),
    )


def _unpacked(fields: tuple[int, ...]) -> AnsweredRange:
    partition, ledger, entry, *end = fields
    first = Position(ledger, entry, partition)
    last_ledger, last_entry, batch_index, batch_size, epoch = end
    last = Position(last_ledger, last_entry, partition, batch_index, batch_size, epoch)
    return AnsweredRange(first, last)
