"""Owners and access lists of topics in the registry, and the order in which topics change.

The record of a topic (router/access/authorizer.py) is kept beside the backend, because not every
backend keeps properties of a topic. A topic without a record has no owner.

Theory of operation. Backend and registry have no common transaction, so the order of steps decides
what a failure between them leaves. A topic that is created gets its record before and again after
its creation: it never exists without its owner. If two requests create it at once, the one that
really created it writes last, and the other one removes the record that it wrote; otherwise it
would own a topic that another request, or a first message, created. A topic that is deleted loses
its record afterwards, unless the record changed meanwhile. A publish that creates a topic removes
the record that an earlier topic of that name may have left. So no topic inherits rights. Two cases
remain: a topic deleted and created again by other protocols alone keeps its record, and so does a
topic that was deleted in the store behind the router and that a publish creates again. Its owner
never gave it up, and that record allowed the publish.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from router.access.authorizer import NO_OWNER, TOPIC_RECORDS, TopicRights
from router.clocks.ttl_cache import TTLCache
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConflictError,
    RouterError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.sharing.registry import Registry, RegistryRecord

CACHE_SECONDS: Final = 1.0
MAX_CACHED_TOPICS: Final = 20_000
MAX_LISTED: Final = 200
MAX_ATTEMPTS: Final = 10

__all__ = ["NO_OWNER", "Rights", "TopicRights"]

_log = structlog.get_logger(__name__)


class Rights:
    """The records of all topics; callable from many threads or greenlets."""

    def __init__(self, registry: Registry, timeout: float, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._timeout = timeout
        self._cache = TTLCache(self.read, CACHE_SECONDS, MAX_CACHED_TOPICS, clock)
        self.cached = self._cache.get
        """Return a topic's rights as they were at most CACHE_SECONDS ago."""

    def read(self, topic: TopicName) -> TopicRights:
        """Return a topic's rights as they are now."""
        record = self._record(topic)
        return NO_OWNER if record is None else TopicRights.load(record)

    def all(self) -> dict[str, TopicRights]:
        """Return the rights of all topics that have a record, by full name."""
        records = self._registry.list(TOPIC_RECORDS, self._timeout)
        return {record.name: TopicRights.load(record) for record in records}

    def change(self, topic: TopicName, edit: Callable[[TopicRights], TopicRights]) -> None:
        """Change a topic's rights, also if other clients change them at the same time.

        `edit` may be called several times. Raises BadRequestError, ConflictError.
        """
        for _ in range(MAX_ATTEMPTS):
            record = self._record(topic)
            before = NO_OWNER if record is None else TopicRights.load(record)
            after = edit(before)
            if after == before:
                return
            if max(len(after.readers), len(after.writers)) > MAX_LISTED:
                raise BadRequestError(f"a topic lists at most {MAX_LISTED} keys")
            version = 0 if record is None else record.version
            try:
                self._registry.put(TOPIC_RECORDS, str(topic), after.dump(), version, self._timeout)
            except ConflictError:
                continue
            self._cache.forget(topic)
            return
        raise ConflictError

    def create(
        self,
        topic: TopicName,
        desired: TopicRights,
        exists: Callable[[], bool],
        make: Callable[[], bool],
    ) -> bool:
        """Have `make` create a topic with these rights; return whether it did.

        A topic that exists keeps its own rights. The module's comment has the order of steps.
        """
        before, ahead = self._record(topic), None
        if desired != NO_OWNER and not exists():
            version = 0 if before is None else before.version
            try:
                ahead = self._registry.put(
                    TOPIC_RECORDS, str(topic), desired.dump(), version, self._timeout
                )
            except ConflictError:
                pass  # another request creates it; the one that does writes last
        try:
            made = make()
        except (BackendUnavailableError, BackendTimeoutError):
            raise  # it may have been created, and then has its owner
        except RouterError:
            self._drop(topic, ahead)
            raise
        if not made:
            self._drop(topic, ahead)
            return False
        if desired != NO_OWNER:
            self._registry.put(TOPIC_RECORDS, str(topic), desired.dump(), None, self._timeout)
        else:
            # Also a record written meanwhile, by a request that did not create the topic.
            self._registry.delete(TOPIC_RECORDS, str(topic), self._timeout)
        self._cache.forget(topic)
        return True

    def delete(self, topic: TopicName, remove: Callable[[], None]) -> None:
        """Have `remove` delete a topic, then delete its rights; raise what `remove` raises."""
        before = self._record(topic)
        try:
            remove()
        except TopicNotFoundError:
            self._drop(topic, before)
            raise
        self._drop(topic, before)

    def begin(self, topic: TopicName) -> None:
        """Remove the record that an earlier topic left; a publish has created a new topic."""
        try:
            self._registry.delete(TOPIC_RECORDS, str(topic), self._timeout)
        except RouterError as error:
            _log.warning("a new topic may have old rights", topic=str(topic), reason=str(error))
        self._cache.forget(topic)

    def _drop(self, topic: TopicName, before: RegistryRecord | None) -> None:
        """Delete a record unless it has changed since."""
        if before is None:
            return
        try:
            now = self._record(topic)
            # A record of another version belongs to a topic that was created since.
            if now is not None and now.version == before.version:
                self._registry.delete(TOPIC_RECORDS, str(topic), self._timeout)
        except RouterError as error:
            _log.warning("rights of a deleted topic stay", topic=str(topic), reason=str(error))
        self._cache.forget(topic)

    def _record(self, topic: TopicName) -> RegistryRecord | None:
        return self._registry.get(TOPIC_RECORDS, str(topic), self._timeout)
