"""One poll of a store that serves polls itself: a request, its answer, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from router.backends.polling import GroupPoll, PendingPoll, Polling
from router.clocks.steps import Steps
from router.errors import BackendTimeoutError, BackendUnavailableError, TopicNotFoundError
from router.model import ConsumerId, PollOutcome, Position, Stored
from router.services.consume.ack_tokens import MAX_TOKEN_PARTITIONS, AckTokens, AnsweredRange
from router.services.consume.context import (
    AckMode,
    AnswerMemory,
    ClientGoneError,
    PollContext,
    PollMailbox,
    PollRequest,
    WaitingClient,
    answer_size,
)
from router.services.consume.oversized import OversizedEntries


@dataclass(eq=False, slots=True)
class DirectSession:
    """One poll; `waited` are the seconds that it has stood still. See `PollSession`."""

    _context: PollContext
    _store: Polling
    _request: PollRequest
    mailbox: PollMailbox
    _client: WaitingClient
    _oversized: OversizedEntries
    waited: float = field(default=0.0, init=False)
    _deadline: float = field(init=False)
    _pending: PendingPoll | None = field(default=None, init=False)
    _memory: AnswerMemory = field(init=False)
    _has_ended: bool = field(default=False, init=False)
    _answered: Sequence[Stored] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._deadline = self._context.clock() + self._request.timeout
        self._memory = AnswerMemory(self._context.unsent)

    def run(self) -> Steps[list[Stored]]:
        """Return messages, or none when the time is over; waits for its mailbox."""
        context = self._context
        may_try_again = True
        while True:
            self._pending = pending = self._store.poll(
                self._poll(), self.mailbox, context.options.backend_timeout
            )
            try:
                found = yield from self._wait(pending)
            except TopicNotFoundError:
                subscription, create = self._request.subscription, context.options.create_topics
                context.forget(subscription)
                context.topics.partitions(subscription.topic, create=create)
                if not may_try_again:
                    raise
                may_try_again = False
                continue
            except BackendUnavailableError:
                # The broker went away, and with it all that was held. That there is nothing is not
                # known, so the poll ends without an answer if its time is over.
                if self._deadline <= context.clock() and not self._request.acknowledged:
                    raise
                continue
            if not found:
                if not pending.is_held:
                    return found
                # What compaction left of a batch: there is nothing in it, and more behind it.
                pending.done(PollOutcome.DELIVERED)
            elif found[0].oversized and self._request.fetch is None:
                self._put_away(pending, found[0])
            elif self._memory.reserve(size := answer_size(found)):
                self._answered = found
                return found
            else:
                # Kept, it would take the memory that there is not. It is received again.
                del found
                pending.done(PollOutcome.REFUSED)
                yield from self._memory.wait_for(size, self._deadline)

    def acknowledge(self, messages: Sequence[Stored]) -> None:
        """Acknowledge what is out, or leave that to the id's next poll, and end. Never raises."""
        self._context.figures.note_answer(messages)
        self._end(PollOutcome.DELIVERED, keep=self._request.ack is AckMode.NEXT)

    def token(self, tokens: AckTokens) -> str:
        """Return what names the messages read."""
        request = self._request
        return tokens.write(
            ConsumerId(request.subscription, request.consumer), _ranges(self._answered)
        )

    def end(self, outcome: PollOutcome) -> None:
        """Release everything; callable twice."""
        self._end(outcome, keep=False)

    def _end(self, outcome: PollOutcome, *, keep: bool) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._memory.release()
        if self._pending is not None:
            self._pending.done(outcome, keep=keep)
            if outcome is PollOutcome.EMPTY and not self._request.limited:
                outcome = PollOutcome.REFUSED
            self._context.figures.outcomes.append(outcome.value)

    def _poll(self) -> GroupPoll:
        context, request = self._context, self._request
        options = context.options
        return GroupPoll(
            request.subscription,
            request.consumer,
            request.limit,
            options.max_bytes if request.max_bytes is None else request.max_bytes,
            max(0.0, self._deadline - context.clock()),
            request.max_bytes is not None and request.fetch is None,
            request.start,
            options.max_bytes,
            request.limited,
            request.fetch,
            request.record,
            MAX_TOKEN_PARTITIONS if request.ack is AckMode.EXPLICIT else 0,
            tuple(answered.last for answered in request.acknowledged.values())
            if request.acknowledged
            else (),
        )

    def _wait(self, pending: PendingPoll) -> Steps[list[Stored]]:
        """Return messages, none when the time is over; raise the poll's failure."""
        context = self._context
        until = self._deadline + context.options.backend_timeout
        while (found := pending.answer()) is None:
            if self._client.is_closed():
                raise ClientGoneError
            if context.stopping:
                if not self._request.limit:
                    raise BackendUnavailableError("this worker stops")
                return []
            began = context.clock()
            if began >= until:
                raise BackendTimeoutError
            yield self.mailbox, min(until - began, self._client.check_seconds())
            self.waited += context.clock() - began
        return found

    def _put_away(self, pending: PendingPoll, stored: Stored) -> None:
        """Pass over an entry that no answer can hold."""
        place: Sequence[Position] = (stored.position,)
        self._oversized.put_away(
            self._request.subscription,
            stored,
            lambda: pending.done(PollOutcome.DELIVERED, upto=place),
        )


def _ranges(found: Sequence[Stored]) -> Iterable[AnsweredRange]:
    """Return the first and the last message of each partition."""
    ranges: dict[int, AnsweredRange] = {}
    for stored in found:
        place = stored.position
        known = ranges.get(place.partition)
        ranges[place.partition] = AnsweredRange(known.first if known else place, place)
    return ranges.values()
