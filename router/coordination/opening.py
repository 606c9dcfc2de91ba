"""From settings to the coordination of a node: ZooKeeper's, or that of a node that is alone."""

from __future__ import annotations

import os
import socket
import time
from typing import NamedTuple

from router.coordination import Coordinator, Registry
from router.coordination.single import SingleNode
from router.settings import Settings


class Coordination(NamedTuple):
    """A node's part in the coordination, and the registry that goes with it."""

    coordinator: Coordinator
    registry: Registry


def open_coordination(settings: Settings, own: Registry) -> Coordination:
    """Return what the settings ask for; `own` is the registry of a node that is alone.

    To be called on the broker's loop, and listened to before that goes on; `close` of the
    coordinator ends all of it. Raises SettingError.
    """
    if not settings.text("zookeeper.servers"):
        return Coordination(SingleNode(), own)
    # Imported when it is wanted: most brokers start without.
    from router.coordination import zookeeper  # noqa: PLC0415
    from router.coordination.zookeeper.registry import ZookeeperRegistry  # noqa: PLC0415

    link = zookeeper.Link(zookeeper.ZookeeperOptions.of(settings), _clock)
    coordinator = zookeeper.ZookeeperCoordinator(link, node_name(settings))
    registry = ZookeeperRegistry(link)
    link.start()
    return Coordination(coordinator, registry)


def node_name(settings: Settings) -> str:
    """Return what other nodes call this one, for people: HOST:PORT:PROCESS."""
    return f"{socket.gethostname()}:{settings.number('server.port')}:{os.getpid()}"


def _clock() -> float:
    """Return seconds that go on while the process is stopped, or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
