"""Messages that went before they were read: said exactly, and either the end or counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.backends.pulsar.extents import EntryPosition
from router.errors import ReadFailedError
from router.pipelines.source.offsets import Part

RETENTION: Final = "retention removed them"
DAMAGED: Final = "they were damaged, and a repair gave them up"
RECREATED: Final = "the topic was deleted and created again"
DELETED: Final = "the topic was deleted, or the source names it no more"
REWOUND: Final = "the partition ends before the place that was read already"


@dataclass(frozen=True, slots=True)
class Loss:
    """A range of a partition that cannot be read any more, from a place to before another one.

    `upto` None: to the end of what there was. `messages` None: the number is unknown.
    """

    part: Part
    start: EntryPosition
    upto: EntryPosition | None
    why: str
    messages: int | None = None

    def __str__(self) -> str:
        partition = "" if self.part.partition < 0 else f" partition {self.part.partition}"
        upto = "on" if self.upto is None else f"to before {self.upto}"
        count = "an unknown number of" if self.messages is None else str(self.messages)
        return (
            f"{self.part.topic}{partition}, from {self.start} {upto}:"
            f" {count} messages, because {self.why}"
        )


class MessagesLostError(ReadFailedError):
    """Messages went before they were read, and the source is to fail then."""


def suffer(losses: Sequence[Loss], *, skip: bool) -> None:
    """Take note of losses that are skipped; else raise MessagesLostError, which names them."""
    if losses and not skip:
        raise MessagesLostError(
            f"messages are lost: {'; '.join(map(str, losses))}."
            " To go on without them, set on_loss = skip"
        )
    if not losses:
        return
    # Takes long to import, which each of Spark's workers would do; losses are rare.
    import structlog  # noqa: PLC0415

    log = structlog.get_logger(__name__)
    for loss in losses:
        log.error(
            "messages-lost",
            topic=loss.part.topic,
            partition=loss.part.partition,
            start=str(loss.start),
            upto=None if loss.upto is None else str(loss.upto),
            messages=loss.messages,
            reason=loss.why,
        )
