"""The backend whose messages live in Apache Kafka, and the client that it is made of.

kafka-python gives the protocol: its messages, its SASL mechanisms and its table of versions.
Connections, producing and reading are the router's own, in blocking code like the rest of the
front. Measured on the way there, one process against Kafka 4.3 on loopback: kafka-python's producer
stores 8,000 messages of 1 KiB a second in batches of 100 (51 µs of CPU each; ours 33,000, 7 µs),
its consumer takes 48 ms and a thread to open; `kafka.fencing`, one request in flight a partition
and deadlines for every step would have had to be fitted around its event loop besides.
"""

from __future__ import annotations

import logging

from router.backends import Backend, Node
from router.backends.kafka.address import Access
from router.backends.kafka.backend import KafkaBackend
from router.backends.kafka.options import KafkaOptions
from router.settings import Settings

__all__ = ["Access", "KafkaBackend", "KafkaOptions", "open_backend"]


def open_backend(url: str, settings: Settings, node: Node) -> Backend:
    """Return the backend at `kafka://host[:port][,host[:port]…][/?client_id=…&sasl=…&tls=…]`.

    Nothing is connected before the first call. Raises SettingError for a URL that is none, for
    unknown options, and for files or credentials that are missing.
    """
    # What it would say about connections, the router says itself.
    logging.getLogger("kafka").setLevel(logging.WARNING)
    return KafkaBackend(Access.parse(url, settings), KafkaOptions.of(settings), node)
