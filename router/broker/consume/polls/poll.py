"""One poll at the broker: its claim, the partitions that it reads, its answer and its end."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence, Set
from math import inf
from typing import TYPE_CHECKING, Final

from router.broker.consume.membership.leases import ClaimUpdate
from router.broker.consume.polls.confirming import NamedAnswer, acknowledge
from router.broker.consume.polls.reader import PollReader
from router.broker.consume.polls.requests import GroupPollRequest, PollClient, TakenMessages, Timer
from router.errors import (
    CoordinationUnavailableError,
    RouterError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TooManyRequestsError,
)
from router.model import PollOutcome, Position

if TYPE_CHECKING:
    from router.broker.consume.polls.engine import PolledGroup, PollEngine

BUSY_RETRY_SECONDS: Final = 0.25
HANDOVER_SECONDS: Final = 0.5
"""Until another poll or node hands over, which takes milliseconds: even for a poll that does not
want to wait. A client that read its answer may poll again before its last poll has ended."""
READ_SECONDS: Final = 10.0
"""Until a read from disk ends, beyond the time of a poll."""
MIN_WAIT_SECONDS: Final = 0.001
MAX_REOPENINGS: Final = 10
"""A subscription that is reset all the time is not read."""
_NO_PARTITIONS: Final[Set[int]] = frozenset()


class Poll:
    """A poll from its request to its end; the leases' Peer of its own claim.

    `group` is set when it is known. `is_answered`: its messages are in flight until it is done.
    `is_resting`: it is done, and its claim stands since `rested_at`.
    """

    __slots__ = (
        "_busy",
        "_claimed_at",
        "_deadline",
        "_engine",
        "_generations",
        "_held",
        "_holder",
        "_is_needed",
        "_is_waiting",
        "_limited",
        "_named",
        "_opened_once",
        "_pending",
        "_reopenings",
        "_revoked",
        "_timed_at",
        "_timer",
        "_unavailable",
        "client",
        "group",
        "has_ended",
        "is_answered",
        "is_resting",
        "poll_id",
        "request",
        "rested_at",
    )

    def __init__(
        self, engine: PollEngine, client: PollClient, poll_id: int, request: GroupPollRequest
    ) -> None:
        self.group: PolledGroup | None = None
        self.has_ended = False
        self.rested_at = 0.0
        self._engine = engine
        self._generations: dict[int, int] = {}
        self._pending: dict[int, Position] = {}
        self._revoked: Set[int] = _NO_PARTITIONS
        self._held: dict[int, PollReader] = {}
        self._holder: str | None = None
        self._unavailable: str | None = None
        self._is_waiting = False
        self._timer: Timer | None = None
        self._timed_at = 0.0
        self.begin_again(client, poll_id, request)

    def begin_again(self, client: PollClient, poll_id: int, request: GroupPollRequest) -> None:
        """Begin with what is claimed."""
        self.client, self.poll_id, self.request = client, poll_id, request
        self.is_answered = self.is_resting = False
        now = self._engine.now()
        self._deadline = now + request.timeout
        self._claimed_at = now
        self._busy: SubscriptionBusyError | None = None
        self._named = NamedAnswer(request.acknowledged)
        self._limited: float | None = None
        self._opened_once = self._is_needed = False
        self._reopenings = 0

    @property
    def name(self) -> str:
        """Return the worker's name for people."""
        return self.client.name

    def claimed(self) -> None:
        """Note that the claim is about to be made."""
        self._claimed_at = self._engine.now()

    # What the leases and the readers call.

    def claim_updated(self, claim_id: int, update: ClaimUpdate) -> None:
        """Take note of an update of the claim; the poll looks at it once the leases are done."""
        del claim_id
        for partition in update.withdrawn:
            self._generations.pop(partition, None)
            self._pending.pop(partition, None)
            if (reader := self._held.pop(partition, None)) is not None:
                reader.detach()
        for grant in update.granted.values():
            self._generations[grant.partition] = grant.generation
            if grant.pending is not None:
                self._pending[grant.partition] = grant.pending
        if self._revoked or update.revoked:
            kept = self._revoked - update.withdrawn - update.granted.keys()
            self._revoked = kept | update.revoked
        self._is_waiting = update.waiting
        self._holder = update.holder
        self._unavailable = update.unavailable_reason
        if update.limited_ms is not None:
            self._limited = update.limited_ms / 1000
        self._is_needed = self.is_resting
        self._engine.look_soon(self)

    def ready(self) -> None:
        """Look for messages soon."""
        if not self.is_answered:
            self._engine.look_soon(self)

    def closed(self, reader: PollReader) -> None:
        """Have a partition opened again whose subscription was reset; acknowledge nothing of it."""
        partition = reader.partition
        self._held.pop(partition, None)
        self._pending.pop(partition, None)
        self._reopenings += 1
        self.ready()

    # What the engine calls.

    def look(self) -> None:
        """Answer if there is something to say; else wait."""
        if self._is_needed:
            self._engine.end_rest(self)
        if self.is_answered or self.has_ended or self.group is None:
            return
        try:
            self._update()
            taken = self._take()
        except SubscriptionNotFoundError:
            self._close()
            self._engine.prepare_again(self)
            return
        except RouterError as error:
            self.refuse(error)
            return
        if taken is None:
            return
        if taken:
            self._stop_timer()
            self.is_answered = True
            self.client.polled(self.poll_id, taken)
            return
        if self._limited is not None and self._is_settled():
            self.refuse(
                TooManyRequestsError(
                    "Please use a long poll setting to decrease the number of requests that result"
                    " in empty responses.",
                    retry_after=self._limited,
                )
            )
            return
        self._give_up()
        self._wait()

    def done(self, outcome: PollOutcome, *, keep: bool, upto: Sequence[Position]) -> None:
        """End: acknowledge what was answered, or what comes up to these positions, if it is out.

        With `keep` the positions go to the next poll of the same id, which acknowledges them. What
        a fetch was answered is in flight instead.
        """
        pending: list[Position] = []
        if self.is_answered and outcome is PollOutcome.DELIVERED:
            for partition, position in self._delivered(upto).items():
                if self.request.fetch is not None:
                    self._held[partition].give(position)
                elif keep:
                    pending.append(position)
                elif upto or not self.request.explicit_partitions:
                    acknowledge(self._held[partition], position)
            if not keep and self._rests():
                return
        self.end(outcome, pending)

    def refuse(self, failure: RouterError) -> None:
        """End with a failure as the answer."""
        self.end(PollOutcome.REFUSED)
        self.client.refused(self.poll_id, failure)

    def end(self, outcome: PollOutcome, pending: Iterable[Position] = ()) -> None:
        """Close what is open and release the claim."""
        self._stop_timer()
        self.has_ended = True
        self._close()
        # What the last poll of the id left, and this one had no time for, is for the next one.
        self._engine.ended(self, outcome, (*self._pending.values(), *pending))

    def _rests(self) -> bool:
        """Rest, if nothing is amiss with the claim, and return whether it does."""
        if self._pending or self._revoked or self._is_waiting or self._unavailable is not None:
            return False
        self._detach()
        self.is_resting = self._engine.rest(self)
        return self.is_resting

    def _delivered(self, upto: Sequence[Position]) -> dict[int, Position]:
        """Return up to where each partition that is still the poll's was answered."""
        last = {
            partition: reader.last
            for partition, reader in self._held.items()
            if reader.last is not None
        }
        if not upto:
            return last
        return {
            position.partition: position
            for position in upto
            if (known := last.get(position.partition)) is not None
            and (position.ledger, position.entry) <= (known.ledger, known.entry)
        }

    @property
    def _is_incomplete(self) -> bool:
        """Return whether partitions may come of which an earlier answer is acknowledged first."""
        return bool(self._named) and (self._is_waiting or self._unavailable is not None)

    def _confirm(self) -> None:
        """Answer a poll that only acknowledges, once that is on disk; raise ConflictError."""
        self._named.check()
        self._stop_timer()
        self.is_answered = True
        for reader in self._held.values():
            reader.when_stored(self._confirmed)
            return
        self._confirmed()

    def _confirmed(self) -> None:
        if not self.has_ended:
            self.end(PollOutcome.REFUSED)
            self.client.polled(self.poll_id, ())

    def _update(self) -> None:
        """Read the partitions that were granted, and no longer those that were withdrawn.

        Raises SubscriptionNotFoundError, TopicNotFoundError.
        """
        assert self.group is not None
        self._busy = None
        held, generations = self._held, self._generations
        for partition in generations.keys() - held.keys():
            reader = self.group.reader(partition)
            if self._reopenings > MAX_REOPENINGS:
                raise SubscriptionBusyError("the subscription is reset all the time", retry_after=1)
            try:
                reader.attach(self, self.request)
            except SubscriptionBusyError as error:
                self._busy = error  # its turn may end before the poll does
                continue
            self._opened_once = True
            held[partition] = reader
            position = self._pending.pop(partition, None)
            if position is not None:
                acknowledge(reader, position)
            self._named.acknowledge(reader)

    def _take(self) -> list[TakenMessages] | None:
        """Return what the partitions have, None: there is nothing to answer now.

        Raises the failure of a partition if there is nothing of the others.
        """
        taken: list[TakenMessages] = []
        if self._is_incomplete:
            return taken
        if not self.request.limit:
            self._confirm()
            return None
        if not self._held:
            return taken
        if not self.client.writable:
            self.client.when_writable(self.ready)
            return None
        request, failure = self.request, None
        limit, max_bytes = request.limit, request.max_bytes
        partitions = request.explicit_partitions or len(self._held)
        for reader in self._in_turn():
            if limit <= 0 or not partitions or (taken and max_bytes <= 0):
                break
            try:
                count, size = reader.take(request, limit, max_bytes, taken)
            except RouterError as error:
                failure = error
                continue
            limit -= count
            max_bytes -= size
            partitions -= bool(count)
        if failure is not None and not taken:
            raise failure
        if not taken:
            self._raise_failure()
        return taken

    def _in_turn(self) -> Sequence[PollReader]:
        readers = list(self._held.values())
        if len(readers) > 1:
            begin = random.randrange(len(readers))  # noqa: S311 - fairness, not secrecy
            readers = readers[begin:] + readers[:begin]
        return readers

    def _raise_failure(self) -> None:
        for reader in self._held.values():
            if (failure := reader.read_failure()) is not None:
                raise failure

    def _give_up(self) -> None:
        """Give back what is assigned to another id: nothing of it was answered."""
        if given := {p: self._generations.pop(p) for p in self._revoked if p in self._generations}:
            self._revoked = _NO_PARTITIONS
            for partition in given:
                if (reader := self._held.pop(partition, None)) is not None:
                    reader.detach()
            self._engine.give_up(self, given)

    def _wait(self) -> None:
        """Wait for something to happen; end when the time is over."""
        now = self._engine.now()
        until = self._deadline
        if self._is_waiting or (self._unavailable is not None and not self._opened_once):
            until = max(until, self._claimed_at + HANDOVER_SECONDS)
        if until <= now and not self._is_settled():
            until = max(until, self._deadline + READ_SECONDS)
        if until > now:
            left = until - now
            if self._busy is not None:
                left = min(left, BUSY_RETRY_SECONDS)
                self._stop_timer()
            elif self.request.fetch is not None:
                left = min(left, self._seconds_until_due())
                self._stop_timer()
            if self._timer is not None and now + left < self._timed_at:
                self._stop_timer()  # what it was to wait for longer came
            if self._timer is None:
                self._timed_at = now + left
                self._timer = self._engine.later(left, self.timed)
            return
        if (refusal := self._refusal()) is not None:
            self.refuse(refusal)
        else:
            self.end(PollOutcome.EMPTY)
            self.client.polled(self.poll_id, ())

    def _seconds_until_due(self) -> float:
        """Return after how many seconds something in flight is due again; infinite: never."""
        due = (reader.seconds_until_due() for reader in self._held.values())
        return max(MIN_WAIT_SECONDS, min((one for one in due if one is not None), default=inf))

    def _is_settled(self) -> bool:
        """Return whether no read from disk is under way."""
        return all(reader.is_settled for reader in self._held.values())

    def timed(self) -> None:
        """Look again soon: the timer is over."""
        self._timer = None
        self._engine.look_soon(self)

    def _refusal(self) -> RouterError | None:
        """Return what names the holder of the subscription, if nothing of it was ever had."""
        is_incomplete = self._is_incomplete
        if self._opened_once and not is_incomplete:
            return None
        if self._unavailable is not None:
            return CoordinationUnavailableError(self._unavailable, retry_after=1)
        if self._holder is not None:
            request = self.request
            who = f"{request.consumer} of group {request.subscription}"
            polls = self._holder.startswith("consumer ")
            what = "is polling already:" if polls else "has to wait for"
            return SubscriptionBusyError(f"{who} {what} {self._holder}", retry_after=1)
        if is_incomplete and self._busy is None:
            return SubscriptionBusyError(
                "the partitions of the Ack-Token are not assigned yet", retry_after=1
            )
        return self._busy

    def _close(self) -> None:
        self._detach()
        self._generations.clear()

    def _detach(self) -> None:
        held, self._held = self._held, {}
        for reader in held.values():
            reader.detach()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
