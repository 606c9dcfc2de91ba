"""All polls of a broker: from a worker's request to its answer, and what is kept between polls.

A poll that delivered *rests*: its claim stands for a moment, and if the id polls again by then, at
this worker or another, the poll begins again without a claim. It ends for good when another id,
another poll of its id, another node or the end of its time needs what it holds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from router.broker.consume import PartitionSubscription, StartPosition
from router.broker.consume.membership.leases import ClaimRequest, Leases
from router.broker.consume.polls.poll import Poll
from router.broker.consume.polls.reader import Opener, PollReader
from router.broker.consume.polls.requests import GroupPollRequest, PollClient, Timer
from router.broker.storage import DamagedError, StoreError
from router.errors import (
    BadRequestError,
    ConflictError,
    OverloadedError,
    PublishRefusedError,
    ReadFailedError,
    RouterError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.errors.quoting import failure_text
from router.model import PollOutcome, Position
from router.sharing.limits import Clock

MAX_KEPT_BYTES: Final = 32 << 20
"""Of entries that are opened or read ahead, which readers keep for the next poll."""
MAX_PREPARING: Final = 1_000
"""Polls whose groups are being made; others wait for that."""
MAX_UNPREPARED: Final = 20_000
REST_SECONDS: Final = 1.0
"""A poll rests for so long, and at most twice as long."""
MAX_RESTING: Final = 20_000

_log = structlog.get_logger(__name__)


class GroupFinder(Protocol):
    """Finds the subscriptions of a group; see `router.broker.topics.groups`."""

    def check_free(self, topic: str, subscription: str) -> None:
        """Raise SubscriptionBusyError if members of another protocol read it."""
        ...

    def present(self, topic: str, subscription: str) -> Sequence[PartitionSubscription] | None:
        """Return a group's subscription on each partition, None: it has to be made.

        Raises TopicNotFoundError, BadNameError, NotAllowedError, SubscriptionBusyError.
        """
        ...

    async def make(self, topic: str, subscription: str, start: StartPosition) -> None:
        """Make a group that does not exist, or not on all partitions; raise as `present` does."""
        ...


class PolledGroup:
    """A group on all partitions of its topic, and the readers of those that polls read."""

    __slots__ = ("_first", "_opener", "_readers", "_subscriptions", "_topic", "polls")

    def __init__(self, subscriptions: Sequence[PartitionSubscription], opener: Opener) -> None:
        self.polls = 0
        self._opener = opener
        self._subscriptions = {one.partition_index: one for one in subscriptions}
        self._first = subscriptions[0].partition
        self._topic = self._first.topic
        self._readers: dict[int, PollReader] = {}

    @property
    def partitions(self) -> int:
        """Return how many partitions there are, 0: the topic is not partitioned."""
        return self._topic.partitions

    @property
    def is_current(self) -> bool:
        """Return whether the topic is still what it was."""
        return self._first.topic is self._topic and not self._first.closed

    def reader(self, partition: int) -> PollReader:
        """Return what reads a partition.

        Raises TopicNotFoundError, and SubscriptionNotFoundError if the topic has grown since.
        """
        reader = self._readers.get(partition)
        if reader is None:
            if (subscription := self._subscriptions.get(partition)) is None:
                raise SubscriptionNotFoundError("the topic has grown meanwhile")
            reader = self._readers[partition] = PollReader(subscription, self._opener)
        if reader.subscription.partition.closed:
            raise TopicNotFoundError("the topic was deleted")
        return reader

    @property
    def held_bytes(self) -> int:
        """Return how many bytes its readers keep."""
        return sum([reader.held_bytes for reader in self._readers.values()])

    def discard(self) -> None:
        """Drop what readers keep, as long as no poll reads."""
        for reader in self._readers.values():
            reader.discard()


class PollEngine:
    """Serves the polls of all workers; one for the broker, on its event loop.

    `later` calls back after some seconds, `clock` is monotonic. `version_of` returns the version of
    a record of the registry, by kind and name, None: it is not known without waiting.
    """

    def __init__(
        self,
        leases: Leases,
        groups: GroupFinder,
        opener: Opener,
        later: Callable[[float, Callable[[], None]], Timer],
        clock: Clock,
        version_of: Callable[[str, str], int | None],
    ) -> None:
        self.now = clock
        self._version_of = version_of
        self._leases = leases
        self._finder = groups
        self._opener = opener
        self.later = later
        self._polls: dict[PollClient, dict[int, Poll]] = {}
        self._groups: dict[tuple[str, str], PolledGroup] = {}
        # Groups that keep something and have no poll, the one used the longest ago first.
        self._kept: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._kept_bytes = 0
        self._tasks: dict[Poll, asyncio.Task[None]] = {}
        self._unprepared: dict[Poll, None] = {}
        self._due: deque[Poll] = deque()
        # By topic, subscription and consumer id; the one that rests the longest first.
        self._resting: dict[tuple[str, str, str], Poll] = {}
        self._is_timed = False
        self._is_looking = self._is_scheduled = False
        leases.forgotten = self._forget

    def begin(self, client: PollClient, poll_id: int, request: GroupPollRequest) -> None:
        """Serve a poll; its answer comes by `client`, at once or later."""
        polls = self._polls.setdefault(client, {})
        if poll_id in polls:
            client.refused(poll_id, BadRequestError(f"poll {poll_id} is under way"))
            return
        record = request.record
        if record is not None and self._version_of(record.kind, record.name) != record.version:
            client.refused(poll_id, ConflictError())
            return
        resting = self._resting.pop(_claimant(request), None)
        group: PolledGroup | None = None
        failure: RouterError | None = None
        try:
            group = self._current(request)
        except RouterError as error:
            failure = error
        if resting is not None:
            if group is not None and self._resume(resting, group):
                polls[poll_id] = resting
                resting.begin_again(client, poll_id, request)
                self._due.append(resting)
                self._look()
                return
            self._release(resting)
        poll = polls[poll_id] = Poll(self, client, poll_id, request)
        if failure is not None:
            poll.refuse(failure)
        elif group is None:
            self.prepare_again(poll)
        else:
            self._claim(poll, group)

    def done(
        self,
        client: PollClient,
        poll_id: int,
        outcome: PollOutcome,
        *,
        keep: bool,
        upto: Sequence[Position],
    ) -> None:
        """End a poll; an unknown one has ended."""
        poll = self._polls.get(client, {}).get(poll_id)
        if poll is not None:
            poll.done(outcome, keep=keep, upto=upto)
            self._look()

    def gone(self, client: PollClient) -> None:
        """End all polls of a worker whose connection is closed."""
        # The last one first, so that none of them is granted what an earlier one held.
        for poll in reversed(list(self._polls.get(client, {}).values())):
            poll.end(PollOutcome.REFUSED)
        self._polls.pop(client, None)
        self._look()

    # What polls call.

    def look_soon(self, poll: Poll) -> None:
        """Have a poll look again, once what happens now is over."""
        self._due.append(poll)
        if not (self._is_looking or self._is_scheduled):
            self._is_scheduled = True
            self.later(0.0, self._look_now)

    def give_up(self, poll: Poll, partitions: dict[int, int]) -> None:
        """Give partitions back, each by the generation of its grant."""
        self._leases.give_up(poll, 0, partitions)

    def ended(self, poll: Poll, outcome: PollOutcome, pending: Iterable[Position] = ()) -> None:
        """Release the claim of a poll that has ended."""
        self._remove(poll)
        self._unprepared.pop(poll, None)
        if (task := self._tasks.pop(poll, None)) is not None:
            task.cancel()
        group, poll.group = poll.group, None
        if group is None:
            return
        group.polls -= 1
        self._leases.release(poll, 0, outcome, pending)
        self._keep(poll, group)

    def rest(self, poll: Poll) -> bool:
        """Have a poll that delivered rest; return False if another waits for what it holds."""
        if len(self._resting) >= MAX_RESTING or not self._leases.rest(poll, 0):
            return False
        self._remove(poll)
        poll.rested_at = self.now()
        self._resting[_claimant(poll.request)] = poll
        if (group := poll.group) is not None:
            group.polls -= 1
            self._keep(poll, group)
        self._end_rests_later()
        return True

    def close(self) -> None:
        """End what is read ahead; no poll is left."""
        for group in self._groups.values():
            group.discard()

    def end_rest(self, poll: Poll) -> None:
        """Release the claim of a poll that rests: it is needed elsewhere."""
        if self._resting.get(key := _claimant(poll.request)) is poll:
            del self._resting[key]
            self._release(poll)

    def prepare_again(self, poll: Poll) -> None:
        """Have the group made, and its poll begin again."""
        if (group := poll.group) is not None:
            poll.group = None
            group.polls -= 1
            if self._groups.get(_key(poll.request)) is group:
                self._drop(_key(poll.request))
            self._leases.release(poll, 0, PollOutcome.REFUSED)
        if len(self._unprepared) >= MAX_UNPREPARED:
            poll.refuse(OverloadedError("Too many groups are being made.", retry_after=1))
            return
        self._unprepared[poll] = None
        self._prepare_next()

    def _current(self, request: GroupPollRequest) -> PolledGroup | None:
        """Return the group, None: it has to be made; raise as GroupFinder's `present` does."""
        key = _key(request)
        self._finder.check_free(*key)
        group = self._groups.get(key)
        if group is not None and group.is_current:
            return group
        found = self._finder.present(request.topic, request.subscription)
        if group is not None:
            self._drop(key)
        if found is None:
            return None
        group = self._groups[key] = PolledGroup(found, self._opener)
        return group

    def _prepare_next(self, _ended: object = None) -> None:
        """Have groups made of polls that wait for it, the first one first."""
        while self._unprepared and len(self._tasks) < MAX_PREPARING:
            poll = next(iter(self._unprepared))
            del self._unprepared[poll]
            self._tasks[poll] = task = asyncio.get_running_loop().create_task(self._prepare(poll))
            task.add_done_callback(self._prepare_next)

    async def _prepare(self, poll: Poll) -> None:
        request = poll.request
        group: PolledGroup | None = None
        failure: RouterError = TopicNotFoundError("the group was deleted while it was made")
        try:
            await self._finder.make(request.topic, request.subscription, request.start)
            group = self._current(request)
        except PublishRefusedError as error:  # a full disk: there is nothing to publish here
            failure = ReadFailedError(f"The group cannot be made: {error}.")
        except RouterError as error:
            failure = error
        except (DamagedError, StoreError, OSError) as error:
            reason = failure_text(error) if isinstance(error, OSError) else str(error)
            failure = ReadFailedError(f"The group cannot be made: {reason}.")
        self._tasks.pop(poll, None)
        if group is None:
            poll.refuse(failure)
        else:
            self._claim(poll, group)

    def _remove(self, poll: Poll) -> None:
        """Forget that a worker has this poll."""
        polls = self._polls.get(poll.client, {})
        polls.pop(poll.poll_id, None)
        if not polls:
            self._polls.pop(poll.client, None)

    def _resume(self, poll: Poll, group: PolledGroup) -> bool:
        """Take back a poll that rests; return False if its claim is not what a new one would be."""
        if poll.group is not group or not self._leases.resume(poll, 0):
            return False
        self._enter(poll, group)
        return True

    def _release(self, poll: Poll) -> None:
        """End a poll that rests."""
        poll.has_ended, poll.group = True, None
        self._leases.release(poll, 0, PollOutcome.REFUSED)

    def _end_rests_later(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self.later(REST_SECONDS, self._end_rests)

    def _end_rests(self) -> None:
        """End the polls that rest for long enough."""
        self._is_timed = False
        until = self.now() - REST_SECONDS
        for poll in list(self._resting.values()):
            if poll.rested_at > until:
                self._end_rests_later()
                break
            self.end_rest(poll)
        self._look()

    def _enter(self, poll: Poll, group: PolledGroup) -> None:
        """Note that a group has one poll more."""
        poll.group = group
        group.polls += 1
        self._kept_bytes -= self._kept.pop(_key(poll.request), 0)

    def _claim(self, poll: Poll, group: PolledGroup) -> None:
        request = poll.request
        poll.claimed()
        self._enter(poll, group)
        claim = ClaimRequest(
            request.topic,
            request.subscription,
            request.consumer,
            group.partitions,
            request.empty_polls_per_minute,
        )
        looking, self._is_looking = self._is_looking, True
        try:
            self._leases.claim(poll, 0, claim)
        except RouterError as error:
            poll.refuse(error)
        finally:
            self._is_looking = looking
        self._look()

    def _look_now(self) -> None:
        self._is_scheduled = False
        self._look()

    def _look(self) -> None:
        """Have the polls look that are due, and those that become so meanwhile."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            while self._due:
                poll = self._due.popleft()
                try:
                    poll.look()
                except Exception:  # noqa: BLE001 - a mistake of ours ends one poll
                    _log.exception("poll-failed", topic=poll.request.topic)
                    poll.refuse(RouterError("an internal error; see the broker's log"))
        finally:
            self._is_looking = False

    def _keep(self, poll: Poll, group: PolledGroup) -> None:
        """Keep what the readers of a group have for its next poll, within the bound."""
        key = _key(poll.request)
        if group.polls or self._groups.get(key) is not group:
            return
        if held := group.held_bytes:
            self._kept[key] = held
            self._kept_bytes += held
        while self._kept_bytes > MAX_KEPT_BYTES:
            oldest, size = self._kept.popitem(last=False)
            self._kept_bytes -= size
            if (dropped := self._groups.get(oldest)) is not None:
                dropped.discard()

    def _forget(self, topic: str, subscription: str) -> None:
        """Drop a group that has no live consumer id any more."""
        key = (topic, subscription)
        group = self._groups.get(key)
        if group is not None and not group.polls:
            self._drop(key)
            group.discard()

    def _drop(self, key: tuple[str, str]) -> None:
        del self._groups[key]
        self._kept_bytes -= self._kept.pop(key, 0)


def _key(request: GroupPollRequest) -> tuple[str, str]:
    return request.topic, request.subscription


def _claimant(request: GroupPollRequest) -> tuple[str, str, str]:
    return request.topic, request.subscription, request.consumer
