"""The table of the broker's listeners, and the settings under which a broker does not start.

A protocol is one entry of LISTENERS: the settings that say where it listens, and a function that
opens a session on a connection. Sockets, TLS, authentication, budgets and the end are the same for
all (router/broker/transport).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from router.broker.kafka.spec import KAFKA
from router.broker.nats.protocol.spec import NATS
from router.broker.pulsar.spec import PULSAR
from router.broker.transport.authentication import check_files
from router.broker.transport.listening import (
    Endpoint,
    ListenAddress,
    ListenerSpec,
    check_spec,
    scheme,
)
from router.errors import SettingError
from router.settings import Settings

LISTENERS: Final[tuple[ListenerSpec, ...]] = (PULSAR, KAFKA, NATS)


def addresses(settings: Settings) -> Iterator[tuple[Endpoint, ListenAddress]]:
    """Yield where the broker listens besides the node's socket; raise SettingError."""
    for spec in LISTENERS:
        for endpoint in spec.endpoints:
            if (address := endpoint.address(settings)) is not None:
                yield endpoint, address


def check(settings: Settings) -> None:
    """Refuse settings that do not go together, or under which unknown clients would be served.

    Without users and without keys of tokens every client is anonymous, so that only loopback is
    served. Raises SettingError.
    """
    _check_nodes(settings)
    served = [check_spec(spec, settings) for spec in LISTENERS]
    if any(served):
        # Files that cannot be used are reported before anything starts.
        check_files(settings, time.monotonic)


def _check_nodes(settings: Settings) -> None:
    if not settings.text("zookeeper.servers"):
        return
    if scheme(settings) in {"embedded", "memory"}:
        raise SettingError(
            "zookeeper.servers is set: nodes that share leases must share their messages as well,"
            f" and those of the backend {scheme(settings)} are this node's own; name a broker that"
            " all nodes use (backend.url = kafka://… or pulsar://…), or leave zookeeper.servers"
            " empty"
        )
    # Imported when it is wanted, for it brings the client along.
    from router.coordination.zookeeper import ZookeeperOptions  # noqa: PLC0415

    ZookeeperOptions.from_settings(settings)
