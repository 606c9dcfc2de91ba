"""A ZooKeeper tree for a command: blocking and bounded; what is there is read, or deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler

from router.coordination.zookeeper.link import ZookeeperOptions
from router.errors import CoordinationUnavailableError

MAX_CONCURRENT: Final = 64
SESSION_SECONDS: Final = 10.0


class ZooKeeperTree:
    """A connected ZooKeeper; calls raise CoordinationUnavailableError after `timeout` seconds."""

    def __init__(self, client: Any, chroot: str, timeout: float) -> None:
        self._client = client
        self._chroot = chroot
        self._timeout = timeout

    def children(self, path: str) -> list[str]:
        """Return the names below a node, none when there is no such node."""
        found = self._end(self._client.get_children_async(self._chroot + path))
        return [] if found is None else list(found)

    def values(self, paths: list[str]) -> list[bytes | None]:
        """Return what these nodes hold, None for one that is not there."""
        values: list[bytes | None] = []
        for start in range(0, len(paths), MAX_CONCURRENT):
            some = paths[start : start + MAX_CONCURRENT]
            request = [self._client.get_async(self._chroot + path) for path in some]
            found = [self._end(one) for one in request]
            values += [None if one is None else one[0] or b"" for one in found]
        return values

    def delete(self, path: str) -> bool:
        """Delete a node that has no children; return whether there was one."""
        deleted: bool | None = self._end(self._client.delete_async(self._chroot + path))
        return deleted is not None

    def _end(self, request: Any) -> Any:
        """Return the result of one of kazoo's asynchronous calls, None: there is no such node."""
        try:
            return request.get(timeout=self._timeout)
        except NoNodeError:
            return None
        except (KazooException, KazooTimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise CoordinationUnavailableError(f"ZooKeeper cannot be read: {reason}") from error


@contextmanager
def opened(servers: str, timeout: float, digest: str = "") -> Iterator[ZooKeeperTree]:
    """Connect to HOST:PORT,HOST:PORT/chroot while the block lasts.

    Raises SettingError, CoordinationUnavailableError.
    """
    options = ZookeeperOptions.parse(servers, SESSION_SECONDS, digest)
    client = options.client(SequentialThreadingHandler())
    try:
        try:
            client.start(timeout)
        except KazooTimeoutError as error:
            raise CoordinationUnavailableError(
                f"ZooKeeper at {options.servers} does not answer within {timeout:g} s"
            ) from error
        yield ZooKeeperTree(client, options.chroot, timeout)
    finally:
        client.stop()
        client.close()
