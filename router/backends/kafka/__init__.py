"""The backend whose messages live in Apache Kafka, and the client that it is made of.

Messages come from `router.wire.kafka`; connections, producing and reading are blocking code like
the rest of the front. The alternative, kafka-python's clients, costs several times the processor
time and has no place for `kafka.fencing` and for a deadline of every step (docs/decisions.md).
"""

from __future__ import annotations

from router.backends import Backend
from router.backends.kafka.backend import KafkaBackend
from router.backends.kafka.options import KafkaConnectionOptions, KafkaOptions
from router.node import Node
from router.settings import Settings

__all__ = ["KafkaBackend", "KafkaConnectionOptions", "KafkaOptions", "open_backend"]


def open_backend(url: str, settings: Settings, node: Node) -> Backend:
    """Return the backend at `kafka://host[:port][,host[:port]…][/?client_id=…&sasl=…&tls=…]`.

    Nothing is connected before the first call. Raises SettingError for a URL that is none, for
    unknown options, and for files or credentials that are missing.
    """
    return KafkaBackend(
        KafkaConnectionOptions.parse(url, settings), KafkaOptions.from_settings(settings), node
    )
