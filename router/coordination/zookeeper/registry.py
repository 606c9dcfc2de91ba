"""Owns the registry in ZooKeeper: `<chroot>/router/registry/<kind>/<name>`, for all nodes.

Theory of operation. A record is a node; its version is the transaction that wrote it last (mzxid),
so it never returns. ZooKeeper compares something else, a count of writes that begins again with a
node of the same name; therefore whatever makes a node also writes its parent, the kind, and
an update checks that the parent was not written since both were read. What a
follower shows may be old: before a conflict is believed it is asked to catch up (`sync`).

The alternative, to keep deleted records as empty ones so that counts go on, keeps what was deleted
for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import ZnodeStat

from router.coordination.zookeeper.link import DownError, ZooKeeperLink
from router.coordination.zookeeper.names import ROOT, escape, unescape
from router.errors import ConflictError, CoordinationUnavailableError
from router.errors.quoting import quoted
from router.sharing.registry import (
    RegistryRecord,
    check_kind,
    check_name,
    check_record,
    check_room,
    check_version,
)

REGISTRY: Final = f"{ROOT}/registry"
TIMEOUT_SECONDS: Final = 5.0
# How long a session that is not there may take to come: at a start, or after a short break.
CONNECT_SECONDS: Final = 1.0
MAX_WAITING: Final = 1_000
MAX_ATTEMPTS: Final = 10
MAX_PAGE_BYTES: Final = 1 << 20
MAX_CONCURRENT: Final = 64

_NOT_THE_CAUSE: Final = (RolledBackError, RuntimeInconsistency)
_OVERTAKEN: Final = (BadVersionError, NodeExistsError, NoNodeError)


Page = list[RegistryRecord]


class ZookeeperRegistry:
    """The Registry (router.coordination) of all nodes; to be made before the link is started.

    Beside what the protocol says, raises CoordinationUnavailableError when ZooKeeper does not
    answer within TIMEOUT_SECONDS; a write may have been done then.
    """

    def __init__(self, link: ZooKeeperLink) -> None:
        self._link = link
        self._waiting = 0
        self._up = asyncio.Event()
        link.listen(lambda _anew: self._up.set(), self._up.clear)

    async def get(self, kind: str, name: str) -> RegistryRecord | None:
        """Return a record, None: there is none."""
        check_name(kind, name)
        async with self._asking():
            return await self._get(kind, name)

    async def put(self, kind: str, name: str, value: bytes, expected: int | None) -> RegistryRecord:
        """Write a record durably; raise ConflictError unless it has the expected version."""
        check_record(kind, name, value)
        async with self._asking():
            for attempt in range(MAX_ATTEMPTS):
                try:
                    version = await self._try_put(kind, name, value, expected)
                except _OVERTAKEN:
                    pass
                except ConflictError:
                    if attempt:
                        raise
                else:
                    return RegistryRecord(name, value, version)
                await self._link.ask(lambda client: client.sync_async(self._kind(kind)))
        raise ConflictError(f"{kind} {quoted(name)} is being changed by others all the time")

    async def delete(self, kind: str, name: str) -> bool:
        """Delete a record; return whether there was one."""
        check_name(kind, name)
        async with self._asking():
            with suppress(NoNodeError):
                await self._link.ask(lambda client: client.delete_async(self._path(kind, name)))
                return True
        return False

    async def list(self, kind: str, after: str = "") -> list[RegistryRecord]:
        """Return the next records of a kind behind a name, by name; none: there are no more."""
        check_kind(kind)
        async with self._asking():
            with suppress(NoNodeError):
                found = await self._link.ask(
                    lambda client: client.get_children_async(self._kind(kind))
                )
                return await self._page(kind, sorted(n for n in map(unescape, found) if n > after))
        return []

    async def _page(self, kind: str, names: Sequence[str]) -> Page:
        records: Page = []
        size = 0
        for start in range(0, len(names), MAX_CONCURRENT):
            reads = (self._get(kind, name) for name in names[start : start + MAX_CONCURRENT])
            for record in await asyncio.gather(*reads):
                if record is None:
                    continue
                size += len(record.name.encode()) + len(record.value)
                if records and size > MAX_PAGE_BYTES:
                    return records
                records.append(record)
        return records

    async def _get(self, kind: str, name: str) -> RegistryRecord | None:
        try:
            value, stat = await self._link.ask(
                lambda client: client.get_async(self._path(kind, name))
            )
        except NoNodeError:
            return None
        return RegistryRecord(name, value, stat.mzxid)

    async def _try_put(self, kind: str, name: str, value: bytes, expected: int | None) -> int:
        """Return the new version; raise one of _OVERTAKEN if another node wrote meanwhile."""
        folder, path = self._kind(kind), self._path(kind, name)
        # The parent first: whatever is made after this is noticed.
        parent = await self._parent(folder)
        found = await self._link.ask(lambda client: client.exists_async(path))
        check_version(kind, name, expected, 0 if found is None else found.mzxid)
        if found is None:
            check_room(kind, parent.numChildren)

        def begin(client: Any) -> Any:
            transaction = client.transaction()
            if found is None:
                transaction.set_data(folder, b"")
                transaction.create(path, value)
            else:
                transaction.check(folder, parent.version)
                transaction.set_data(path, value, found.version)
            return transaction.commit_async()

        results = await self._link.ask(begin)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, _NOT_THE_CAUSE):
                raise result
        # All of a transaction is written under its one number.
        (version,) = (result.mzxid for result in results if isinstance(result, ZnodeStat))
        return int(version)

    async def _parent(self, path: str) -> ZnodeStat:
        found = await self._link.ask(lambda client: client.exists_async(path))
        if found is None:
            await self._link.ask(lambda client: client.ensure_path_async(path))
            found = await self._link.ask(lambda client: client.exists_async(path))
        return found

    def _kind(self, kind: str) -> str:
        return self._link.path(f"{REGISTRY}/{kind}")

    def _path(self, kind: str, name: str) -> str:
        return f"{self._kind(kind)}/{escape(name)}"

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Bound how many calls wait, and how long."""
        if self._waiting >= MAX_WAITING:
            raise CoordinationUnavailableError("ZooKeeper has too much to do", retry_after=1.0)
        self._waiting += 1
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._up.wait()
                yield
        except (TimeoutError, DownError) as error:
            raise CoordinationUnavailableError(
                f"ZooKeeper at {self._link.where}, which keeps the registry, does not answer"
            ) from error
        except KazooException as error:
            raise CoordinationUnavailableError(
                f"ZooKeeper at {self._link.where} refuses: {type(error).__name__} {error}"
            ) from error
        finally:
            self._waiting -= 1
