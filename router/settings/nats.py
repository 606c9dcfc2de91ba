"""The settings of NATS and JetStream."""

from __future__ import annotations

from typing import Final

from router.settings.setting import Setting, count, size

NATS: Final[tuple[Setting, ...]] = (
    size(
        "nats.max_payload",
        "1M",
        "Maximum size of a message of a NATS client or of JetStream over HTTP, with its headers.",
    ),
    count("nats.max_subscriptions", "10000", "Maximum number of subscriptions of one NATS client."),
    size(
        "nats.max_pending",
        "32M",
        "Size of the messages that wait for a NATS client above which it is cut off as a slow"
        " consumer.",
    ),
    count(
        "nats.max_subjects",
        "500000",
        "Maximum number of subjects that the messages of all streams have together. A message with"
        " a new subject beyond it is refused.",
    ),
)
