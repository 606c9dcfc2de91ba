"""One fetch: a poll that acknowledges nothing, and takes only what nobody else has been given.

Theory of operation. A fetch claims and opens partitions as any poll does (`services/consume`). Of
each partition that it opens it reads which messages were given (`given`), and passes over those. If
it finds something, what it gives is written down, while it holds the claim and before the answer is
made: a client that is answered twice is answered different messages. A message that comes due while
the fetch waits is found by opening its partition anew, as a consumer hands out each message once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.backends import Consumer, Outcome
from router.errors import (
    ConflictError,
    ConsumerClosedError,
    RouterError,
    SubscriptionBusyError,
    TooManyRequestsError,
)
from router.model import NOT_PARTITIONED, Position, Stored
from router.services.consume.session import Session
from router.services.consume.wish import Client, PollMailbox, Wish
from router.services.fetch.given import KIND, Given

if TYPE_CHECKING:
    from router.services.fetch.fetcher import Fetcher

# What is passed over is read in pieces of at least so many messages.
PIECE: Final = 100
# For how many seconds to go by the consumers that there were.
LIVE_FOR: Final = 1.0


class _Opened:
    """What was given of a partition that this fetch has open, and the record that says so."""

    __slots__ = ("given", "taken", "version")

    def __init__(self, given: Given, version: int) -> None:
        self.given = given
        self.version = version
        self.taken = False


class FetchSession(Session):
    """One fetch, from its claim to its end."""

    __slots__ = ("_fetcher", "_live", "_live_at", "_opened", "_room")

    def __init__(
        self,
        fetcher: Fetcher,
        wish: Wish,
        mailbox: PollMailbox,
        client: Client,
        live: frozenset[str],
    ) -> None:
        super().__init__(fetcher, wish, mailbox, client)
        self._fetcher = fetcher
        self._live = live
        self._live_at = fetcher.clock()
        self._opened: dict[int, _Opened] = {}
        self._room = fetcher.options.max_bytes if wish.max_bytes is None else wish.max_bytes

    def note(self) -> None:
        """Write down what was taken; raise SubscriptionBusyError if somebody else did meanwhile."""
        fetcher = self._fetcher
        timeout = self._of.options.backend_timeout
        for partition, opened in self._opened.items():
            if not opened.taken:
                continue
            try:
                fetcher.registry.put(
                    KIND, self._record(partition), opened.given.dump(), opened.version, timeout
                )
            except ConflictError as error:
                raise SubscriptionBusyError(
                    "Somebody else was given the same messages meanwhile.", retry_after=1
                ) from error

    def end(self, outcome: Outcome, pending: tuple[Position, ...] = ()) -> None:
        """Let everything go; empty fetches do not count against the limit on empty polls."""
        counted = Outcome.REFUSED if outcome is Outcome.EMPTY else outcome
        super().end(counted, pending)

    def _hold(self, size: int) -> bool:
        """Reserve nothing: a fetch ends before its answer is made, and who makes that reserves."""
        del size
        return True

    def _check_limit(self, claim: object) -> None:
        """Let it fetch: the limit on empty polls is the DMaaP dialect's."""

    def _consume(self, partition: int, generation: int) -> Consumer:
        consumer = super()._consume(partition, generation)
        record = self._fetcher.registry.get(
            KIND, self._record(partition), self._of.options.backend_timeout
        )
        given = Given() if record is None else Given.load(record.value)
        self._look_who_lives()
        self._opened[partition] = _Opened(given, 0 if record is None else record.version)
        return consumer

    def _look_who_lives(self) -> None:
        """Know the consumers that came while this fetch waited: what they have is theirs."""
        now = self._fetcher.clock()
        if now - self._live_at >= LIVE_FOR:
            self._live = self._fetcher.consumers.live(self._wish.subscription)
            self._live_at = now

    def _look(self) -> list[Stored]:
        """Take what may be given now, beginning with another partition each time."""
        self._open_due()
        found: list[Stored] = []
        failure: RouterError | None = None
        room, now = self._room, self._fetcher.wall_ms()
        for partition in self._turns():
            left = self._wish.limit - len(found)
            if left <= 0 or (found and room <= 0):
                break
            try:
                some = self._take(partition, left, room, now, alone=not found)
            except ConsumerClosedError as error:
                if not self._reopen(partition):
                    failure = error
                continue
            except RouterError as error:
                failure = error
                continue
            room -= sum(stored.message.size() for stored in some)
            found += some
        if failure is not None and not found:
            raise failure
        if not found:
            self._wake_when_due()
        return found

    def _take(
        self, partition: int, limit: int, room: int, now: int, *, alone: bool
    ) -> list[Stored]:
        """Give messages of a partition; `alone`: a first one may be larger than the room.

        `now` is the same for all of one answer, so that what was given together comes due together.
        """
        consumer, opened = self._consumers[partition][1], self._opened[partition]
        found: list[Stored] = []
        while len(found) < limit:
            try:
                some = consumer.receive(
                    max(limit, PIECE), self._room, self._of.options.backend_timeout
                )
            except RouterError:
                if found:
                    return found
                raise
            if not some:
                if not found:
                    self._tidy(partition, opened)
                return found
            for stored in some:
                size = stored.message.size()
                if len(found) == limit or (size > room and (found or not alone)):
                    return found
                if self._give(opened, stored, now):
                    found.append(stored)
                    room -= size
            if not found:
                self._check_passed_over(partition, opened.given.passed_over)
        return found

    def _give(self, opened: _Opened, stored: Stored, now: int) -> bool:
        """Give a message to this consumer, unless it is somebody's or is to come later."""
        if not opened.given.may_give(stored, now, self._live):
            return False
        # In steps of a tenth, so that what is given at about the same time becomes one span.
        step = max(1, round(self._fetcher.fetching.ack_timeout * 100))
        due = (now // step + 11) * step
        opened.given.give(stored, due, self._wish.consumer)
        opened.taken = True
        return True

    def _tidy(self, partition: int, opened: _Opened) -> None:
        """Delete the record of a partition of which nothing is to be remembered any more."""
        live, now = self._live, self._fetcher.wall_ms()
        if opened.version and not opened.given.passed_over and opened.given.over(now, live):
            timeout = self._of.options.backend_timeout
            self._fetcher.registry.delete(KIND, self._record(partition), timeout)
            opened.version = 0

    def _check_passed_over(self, partition: int, passed_over: int) -> None:
        if passed_over > self._fetcher.fetching.most_unacknowledged:
            raise TooManyRequestsError(
                f"{passed_over} messages of partition {max(partition, 0)} wait to be acknowledged"
                " (pip64.max_unacknowledged).",
                retry_after=1,
            )

    def _forget(self, partition: int) -> None:
        super()._forget(partition)
        self._opened.pop(partition, None)

    def _open_due(self) -> None:
        """Have the partitions opened anew in which something came due since they were gone over."""
        now = self._fetcher.wall_ms()
        due = [p for p, o in self._opened.items() if (at := o.given.next_due) and at <= now]
        for partition in due:
            self._forget(partition)
        if due and self._claim is not None:
            self._open(self._claim)

    def _wake_when_due(self) -> None:
        """Have the wait end when the next message comes due."""
        times = [o.given.next_due for o in self._opened.values() if o.given.next_due is not None]
        if times:
            self._client = _Until(self._client, min(times), self._fetcher)

    def _record(self, partition: int) -> str:
        return record_name(self._wish, partition)


class _Until:
    """A client that is looked at again at a certain time, when the fetch has something to do."""

    def __init__(self, client: Client, due: int, fetcher: Fetcher) -> None:
        self._inner: Client = client._inner if isinstance(client, _Until) else client
        self._due = due
        self._fetcher = fetcher

    def gone(self) -> bool:
        """Return whether the client closed its connection."""
        return self._inner.gone()

    def look_every(self) -> float:
        """Return after how many seconds to look again."""
        left = (self._due - self._fetcher.wall_ms()) / 1000
        return min(self._inner.look_every(), max(left, 0.001))


def record_name(wish: Wish, partition: int) -> str:
    """Return the name of the record that says what of a partition was given."""
    return f"{wish.subscription.topic}|{wish.subscription.name}|{max(partition, NOT_PARTITIONED)}"
