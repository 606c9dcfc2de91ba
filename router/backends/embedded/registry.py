"""The registry as a worker reaches it: through the node's broker, wherever that keeps it."""

from __future__ import annotations

import time
from threading import BoundedSemaphore
from typing import Any, Final

from router.backends import Record
from router.backends.pulsar.admin import remaining
from router.backends.pulsar.asking import ask
from router.backends.pulsar.link import Link
from router.errors import BackendTimeoutError
from router.wire.pulsar import pulsar_pb2 as pb

AT_ONCE: Final = 64
"""Calls of one worker that the broker has before it; it ends a connection that has too many."""


class BrokerRegistry:
    """The Registry of the node's broker; a call that its connection loses is made again.

    All but a write that expects a version: it may have been done, and would conflict with itself.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._room = BoundedSemaphore(AT_ONCE)

    def get(self, kind: str, name: str, timeout: float) -> Record | None:
        """Return a record, None: there is none."""
        command = pb.CommandAdmin(registry_get=pb.RegistryRef(kind=kind, name=name))
        records = self._ask(command, time.monotonic() + timeout).records
        return _record(records[0]) if records else None

    def put(
        self, kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> Record:
        """Write a record durably, if it has the expected version; 0: only if there is none yet."""
        put = pb.RegistryPut(kind=kind, name=name, value=value, expected=expected)
        command, deadline = pb.CommandAdmin(registry_put=put), time.monotonic() + timeout
        return _record(self._ask(command, deadline, again=expected is None).records[0])

    def delete(self, kind: str, name: str, timeout: float) -> bool:
        """Delete a record; return whether there was one."""
        command = pb.CommandAdmin(registry_delete=pb.RegistryRef(kind=kind, name=name))
        deleted: bool = self._ask(command, time.monotonic() + timeout).deleted
        return deleted

    def list(self, kind: str, timeout: float) -> list[Record]:
        """Return all records of a kind, by name: those that were there all the time, at least."""
        deadline = time.monotonic() + timeout
        records: list[Record] = []
        while True:
            after = records[-1].name if records else ""
            command = pb.CommandAdmin(registry_list=kind, registry_after=after)
            page = [_record(record) for record in self._ask(command, deadline).records]
            if not page:
                return records
            records += page

    def _ask(self, command: pb.CommandAdmin, deadline: float, *, again: bool = True) -> Any:
        if not self._room.acquire(timeout=remaining(deadline)):
            raise BackendTimeoutError("the registry has too much to do")
        try:
            return ask(self._link, command, deadline, again=again)
        finally:
            self._room.release()


def _record(found: Any) -> Record:
    return Record(found.name, found.value, found.version)
