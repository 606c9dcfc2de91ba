"""How many partitions each topic has, remembered for a few seconds, and topics made on demand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from router.backends import Backend, JointBackend
from router.clocks.ttl_cache import TTLMap
from router.errors import TopicExistsError, TopicNotFoundError, too_many_topics
from router.model import NOT_PARTITIONED, TopicName

TTL_SECONDS: Final = 5.0
MAX_TOPICS: Final = 20_000


class TopicMetadataCache:
    """The topics as this worker knows them; calls may be made from many threads or greenlets.

    `created` is told of each new topic that was made on demand, not of one that is as it was. With
    so many topics as `max_topics` none is made on demand; 0: no limit.
    """

    def __init__(
        self,
        backend: Backend,
        auto_partitions: int,
        timeout: float,
        clock: Callable[[], float],
        created: Callable[[TopicName], None] | None = None,
        max_topics: int = 0,
    ) -> None:
        self._backend = backend
        self._joint = backend if isinstance(backend, JointBackend) else None
        self._auto_partitions = auto_partitions
        self._timeout = timeout
        self._clock = clock
        self._created = created
        self._max_topics = max_topics
        self._full_until = 0.0
        self._known: TTLMap[TopicName, int] = TTLMap(TTL_SECONDS, MAX_TOPICS, clock)
        self.known = self._known.get
        """Returns the number of partitions as it was a few seconds ago, None: see `renewed`."""

    def renewed(self, topic: TopicName) -> int | None:
        """Return the number of partitions of a topic that this worker publishes to just then.

        It exists, and has no partitions; one with partitions may have more of them by now. None:
        ask `partitions`.
        """
        if self._joint is None or not self._joint.is_open(topic, NOT_PARTITIONED):
            return None
        self._known.put(topic, 0)
        return 0

    def partitions(self, topic: TopicName, *, create: bool = False) -> int:
        """Return the number of partitions, 0: not partitioned; raise TopicNotFoundError.

        With `create`, a topic that does not exist is made; raises NotAllowedError if there are too
        many already. The answer may be a few seconds old: who finds it wrong calls `forget` and
        asks again.
        """
        if (known := self._known.get(topic)) is None:
            known = self.renewed(topic)
        if known is not None:
            return known
        try:
            count = self._backend.partitions(topic, self._timeout)
        except TopicNotFoundError:
            self._known.remove(topic)
            if not create:
                raise TopicNotFoundError(f"[{topic.local}]") from None
            count = self._create(topic)
        self._known.put(topic, count)
        return count

    def forget(self, topic: TopicName) -> None:
        """Ask the backend the next time."""
        self._known.remove(topic)

    def _check_limit(self) -> None:
        """Raise NotAllowedError where there are too many topics to make one more."""
        limit, now = self._max_topics, self._clock()
        if not limit:
            return
        # All of them are counted, so a flood of new names must not have each of its own counted.
        if now >= self._full_until and len(self._backend.list_topics(self._timeout)) < limit:
            return
        if now >= self._full_until:
            self._full_until = now + TTL_SECONDS
        raise too_many_topics(limit)

    def _create(self, topic: TopicName) -> int:
        self._check_limit()
        # Many publishers may find a new topic missing at once; one of them makes it.
        with suppress(TopicExistsError):
            made = self._backend.create_on_demand(topic, self._auto_partitions, self._timeout)
            if made and self._created is not None:
                self._created(topic)
        return self._backend.partitions(topic, self._timeout)
