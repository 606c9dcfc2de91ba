"""From settings to the coordination of a node: ZooKeeper's, or that of a node that is alone.

A node that is alone holds every lease that it asks for, at once.
"""

from __future__ import annotations

import os
import socket
import time
from typing import NamedTuple

from router.coordination import Coordinator, Lease, LeaseListener, RemoteGroup
from router.settings import Settings
from router.sharing.registry import AsyncRegistry


class SingleNode:
    """The Coordinator of a single node."""

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        self._listener: LeaseListener | None = None

    def listen(self, listener: LeaseListener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    def acquire(self, lease: Lease) -> None:
        """Hold the lease, before this returns."""
        self.leases.add(lease)
        if self._listener is not None:
            self._listener.held(lease)

    def release(self, lease: Lease, note: bytes = b"") -> None:
        """Let the lease go."""
        del note
        self.leases.discard(lease)

    def join(self, topic: str, subscription: str, consumer: str) -> None:
        """Do nothing: there is no other node."""

    def leave(self, topic: str, subscription: str, consumer: str) -> None:
        """Do nothing: there is no other node."""

    def holder(self, lease: Lease) -> str | None:
        """Return None: there is no other node."""
        del lease
        return None

    async def remote_group(self, topic: str, subscription: str) -> RemoteGroup:
        """Return nothing: there is no other node."""
        return RemoteGroup()

    def is_valid(self) -> bool:
        """Return True: there is no other node."""
        return True

    def unavailable_reason(self) -> str | None:
        """Return None: there is nothing to reach."""
        return None

    async def close(self) -> None:
        """Let everything go."""
        self.leases.clear()


class Coordination(NamedTuple):
    """A node's part in the coordination, and the registry that goes with it."""

    coordinator: Coordinator
    registry: AsyncRegistry


def open_coordination(settings: Settings, own: AsyncRegistry) -> Coordination:
    """Return what the settings ask for; `own` is the registry of a node that is alone.

    To be called on the broker's loop, and listened to before that goes on; `close` of the
    coordinator ends all of it. Raises SettingError.
    """
    if not settings.text("zookeeper.servers"):
        return Coordination(SingleNode(), own)
    # Imported when it is wanted: most brokers start without.
    from router.coordination import zookeeper  # noqa: PLC0415
    from router.coordination.zookeeper.registry import ZookeeperRegistry  # noqa: PLC0415

    link = zookeeper.ZooKeeperLink(zookeeper.ZookeeperOptions.from_settings(settings), _clock)
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
