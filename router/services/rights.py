"""Whose a topic is, and whom its owner lets publish to it and read it.

The record of a topic (router/access/owners.py) is kept beside the backend because not every
backend keeps properties of a topic. A topic without a record has no owner.

Theory of operation. Store and registry have no common transaction, so the order of steps decides
what a failure between them leaves. A topic that is made gets its record first and again once it is
made: at no time is it there without its owner, and of two that make it at once the one who really
made it writes last; the other one takes back what it wrote, or it would own what somebody else, or
somebody's first message, made. A topic that is deleted loses its record afterwards, unless that
changed meanwhile; and whoever makes a topic that nobody asked for by name (the first publish)
removes what an earlier topic of that name may have left. So no topic inherits rights. What remains:
a topic deleted and made again by other protocols alone keeps its record, and so does one that was
deleted in the store behind the router and that a publish makes again as it was: its owner never
gave it up, and the publish was allowed by that record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog

from router.access.owners import KIND, NOBODY, TopicRights
from router.backends import Record, Registry
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConflictError,
    RouterError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.services.remembered import Remembered

REMEMBERED: Final = 1.0
MOST_REMEMBERED: Final = 20_000
MOST_LISTED: Final = 200
TRIES: Final = 10

__all__ = ["KIND", "NOBODY", "Rights", "TopicRights", "listing"]

_log = structlog.get_logger(__name__)


class Rights:
    """The records of all topics; callable from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._timeout = timeout
        self._remembered = Remembered(self.read, REMEMBERED, MOST_REMEMBERED, clock)

    def known(self, topic: TopicName) -> TopicRights:
        """Return a topic's rights as they were at most REMEMBERED seconds ago."""
        return self._remembered.get(topic)

    def read(self, topic: TopicName) -> TopicRights:
        """Return a topic's rights as they are."""
        record = self._record(topic)
        return NOBODY if record is None else TopicRights.load(record)

    def all(self) -> dict[str, TopicRights]:
        """Return the rights of all topics that have a record, by full name."""
        records = self._registry.list(KIND, self._timeout)
        return {record.name: TopicRights.load(record) for record in records}

    def change(self, topic: TopicName, edit: Callable[[TopicRights], TopicRights]) -> None:
        """Change a topic's rights, whoever else does so at the same time.

        `edit` may be called more than once. Raises BadRequestError, ConflictError.
        """
        for _ in range(TRIES):
            record = self._record(topic)
            before = NOBODY if record is None else TopicRights.load(record)
            after = edit(before)
            if after == before:
                return
            if max(len(after.readers), len(after.writers)) > MOST_LISTED:
                raise BadRequestError(f"a topic lists at most {MOST_LISTED} keys")
            version = 0 if record is None else record.version
            try:
                self._registry.put(KIND, str(topic), after.dump(), version, self._timeout)
            except ConflictError:
                continue
            self._remembered.forget(topic)
            return
        raise ConflictError

    def create(
        self,
        topic: TopicName,
        wanted: TopicRights,
        exists: Callable[[], bool],
        make: Callable[[], bool],
    ) -> bool:
        """Have `make` make a topic with these rights; return whether it did.

        One that exists keeps its own. See above for the order of steps.
        """
        before, ahead = self._record(topic), None
        if wanted != NOBODY and not exists():
            version = 0 if before is None else before.version
            try:
                ahead = self._registry.put(KIND, str(topic), wanted.dump(), version, self._timeout)
            except ConflictError:
                pass  # somebody else is making it; who does writes last
        try:
            made = make()
        except (BackendUnavailableError, BackendTimeoutError):
            raise  # it may have been made, and shall have its owner then
        except RouterError:
            self._drop(topic, ahead)
            raise
        if not made:
            self._drop(topic, ahead)
            return False
        if wanted != NOBODY:
            self._registry.put(KIND, str(topic), wanted.dump(), None, self._timeout)
        else:
            # Also what came meanwhile: it is of somebody who did not make the topic.
            self._registry.delete(KIND, str(topic), self._timeout)
        self._remembered.forget(topic)
        return True

    def delete(self, topic: TopicName, remove: Callable[[], None]) -> None:
        """Have `remove` delete a topic, and its rights after it; raise TopicNotFoundError."""
        before = self._record(topic)
        try:
            remove()
        except TopicNotFoundError:
            self._drop(topic, before)
            raise
        self._drop(topic, before)

    def begin(self, topic: TopicName) -> None:
        """Remove what an earlier topic left: a new one was made that nobody asked for by name."""
        try:
            self._registry.delete(KIND, str(topic), self._timeout)
        except RouterError as error:
            _log.warning("a new topic may have old rights", topic=str(topic), reason=str(error))
        self._remembered.forget(topic)

    def _drop(self, topic: TopicName, before: Record | None) -> None:
        """Delete a record as long as it is that one."""
        if before is None:
            return
        try:
            now = self._record(topic)
            # With another version it is that of a topic that was made since.
            if now is not None and now.version == before.version:
                self._registry.delete(KIND, str(topic), self._timeout)
        except RouterError as error:
            _log.warning("rights of a deleted topic stay", topic=str(topic), reason=str(error))
        self._remembered.forget(topic)

    def _record(self, topic: TopicName) -> Record | None:
        return self._registry.get(KIND, str(topic), self._timeout)


def listing(name: str, *, reader: bool, listed: bool) -> Callable[[TopicRights], TopicRights]:
    """Return the change that puts a name on a list, or takes it off."""

    def edit(rights: TopicRights) -> TopicRights:
        if reader:
            return replace(rights, readers=_changed(rights.readers, name, listed))
        return replace(rights, writers=_changed(rights.writers, name, listed))

    return edit


def _changed(names: Iterable[str], name: str, listed: bool) -> frozenset[str]:
    return frozenset(names) | {name} if listed else frozenset(names) - {name}
