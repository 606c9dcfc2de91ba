"""Polls: the service that runs them, and each one from its claim to its end.

A `PollSession` claims, waits, reads, and is acknowledged or abandoned; `PollServer` runs sessions,
knows which wait, and ends them when the worker stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from router.backends import Backend
from router.backends.polling import Polling
from router.clocks.steps import Steps, run_blocking
from router.errors import (
    BackendUnavailableError,
    ConflictError,
    CoordinationUnavailableError,
    RouterError,
    SubscriptionBusyError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from router.metrics import Metrics
from router.model import ConsumerId, PollOutcome, Position, Stored, TopicName
from router.node import Claim, Node
from router.services.consume.ack_tokens import AckTokens
from router.services.consume.context import (
    AckMode,
    AnswerMemory,
    ClientGoneError,
    ConsumeOptions,
    PollContext,
    PollMailbox,
    PollRequest,
    WaitingClient,
    answer_size,
)
from router.services.consume.direct import DirectSession
from router.services.consume.oversized import AnswerReader, OversizedEntries
from router.services.consume.partitions import OpenPartitionReader, OpenPartitions
from router.services.consume.retained import ClaimMailbox
from router.services.topic_metadata import TopicMetadataCache

BUSY_RETRY_SECONDS: Final = 0.25
# A client that read its answer may poll again before its last poll has acknowledged and released,
# here or on another node: that takes milliseconds, and even a poll that does not want to wait gets
# so long for it. A connection that broke between the nodes is often back as soon.
HANDOVER_SECONDS: Final = 0.5
STORE_CHECK_SECONDS: Final = 1.0
"""How long a poll that is refused looks whether the store answers."""
MIN_WAIT_SECONDS: Final = 0.001

_log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class PollSession:
    """One poll; `waited` are the seconds that it has stood still."""

    _context: PollContext
    _request: PollRequest
    mailbox: PollMailbox
    _client: WaitingClient
    _reader: OpenPartitionReader
    waited: float = field(default=0.0, init=False)
    _consumer: ConsumerId = field(init=False)
    _partitions: OpenPartitions = field(init=False)
    _count: int = field(default=0, init=False)
    _deadline: float = field(init=False)
    _claim: Claim | None = field(default=None, init=False)
    _claimed: float = field(default=0.0, init=False)
    _memory: AnswerMemory = field(init=False)

    def __post_init__(self) -> None:
        context, request = self._context, self._request
        self._consumer = ConsumerId(request.subscription, request.consumer)
        mailbox = ClaimMailbox(self.mailbox)
        self._partitions = OpenPartitions(context, request, mailbox, self._reader)
        self._deadline = context.clock() + request.timeout
        self._memory = AnswerMemory(context.unsent)

    def run(self) -> Steps[list[Stored]]:
        """Return messages, or none when the time is over; waits for its mailbox."""
        context, request = self._context, self._request
        while True:
            self._count = context.ensure_group(request)
            self._claim = claim = self._resume() or context.node.claim(
                self._consumer,
                self._count,
                self._partitions.mailbox,
                context.options.backend_timeout,
            )
            # Only now: making the group may have taken all the time that there was.
            self._claimed = context.clock()
            try:
                found = yield from self._wait(claim)
            except TopicNotFoundError:
                context.forget(request.subscription)
                raise
            except BackendUnavailableError:
                if not claim.lost():
                    context.check_topic(request.subscription)
                    raise
                found = None
            if found is not None:
                if not found or self._memory.reserve(size := answer_size(found)):
                    return found
                # Kept, it would take the memory that there is not. It is received again.
                del found
                self._release(PollOutcome.REFUSED)
                yield from self._memory.wait_for(size, self._deadline)
                continue
            # The broker went away, and with it all that was held: claim again, while there is time.
            self._drop()
            if self._deadline <= context.clock():
                raise BackendUnavailableError("the node's broker went away")

    def _resume(self) -> Claim | None:
        """Return the claim that the id's last poll left here, with its consumers; None: none."""
        retained = self._context.retained.take(self._consumer, self._count)
        if retained is None:
            return None
        if self._partitions.unacknowledged or not self._reader.is_retained:
            retained.end()
            return None
        retained.mailbox.mailbox = self.mailbox
        self._claim = retained.claim
        self._partitions.resume(retained)
        return retained.claim

    def _wait(self, claim: Claim) -> Steps[list[Stored] | None]:
        """Return messages, none when the time is over, or None when the claim was lost."""
        context, request, partitions = self._context, self._request, self._partitions
        bytes_left = context.options.max_bytes if request.max_bytes is None else request.max_bytes
        while not claim.lost():
            # Before the grants are read: what comes between belongs to the next look.
            more = claim.waiting() or claim.unavailable_reason() is not None
            partitions.update(claim)
            # What is acknowledged first may be in a partition that is still on its way.
            incomplete = more and bool(partitions.unacknowledged)
            if not incomplete:
                if not request.limit:
                    return self._only_acknowledged()
                if found := partitions.read(request.limit, bytes_left):
                    return found
            self._check_limit(claim)
            self._give_up(claim)
            if claim.recalled():
                claim.in_use()
            if self._client.is_closed():
                raise ClientGoneError
            left = self._left(claim)
            if left <= 0 or context.stopping:
                self._check_busy(claim, incomplete=incomplete)
                return []
            pause = BUSY_RETRY_SECONDS if partitions.busy else self._client.check_seconds()
            pause = max(MIN_WAIT_SECONDS, min(pause, self._reader.seconds_until_due()))
            began = context.clock()
            yield self.mailbox, min(left, pause)
            self.waited += context.clock() - began
        return None

    def _left(self, claim: Claim) -> float:
        """Return for how many seconds this poll may go on waiting."""
        now = self._context.clock()
        left = self._deadline - now
        unavailable = not self._partitions.ever_opened and claim.unavailable_reason() is not None
        if claim.waiting() or unavailable:
            return max(left, self._claimed + HANDOVER_SECONDS - now)
        return left

    def _check_limit(self, claim: Claim) -> None:
        after = claim.limited() if self._request.limited else None
        if after is not None:
            raise TooManyRequestsError(
                "Please use a long poll setting to decrease the number of requests that result in"
                " empty responses.",
                retry_after=after,
            )

    def _only_acknowledged(self) -> list[Stored]:
        """Return no messages, of a poll that only acknowledges; raise ConflictError."""
        if overtaken := self._partitions.unacknowledged:
            raise ConflictError.overtaken(overtaken)
        return []

    def _check_busy(self, claim: Claim, *, incomplete: bool) -> None:
        """Raise what names the holder of the subscription, if nothing of it was ever had.

        `incomplete`: what the poll acknowledges first is not acknowledged yet.
        """
        if self._partitions.ever_opened and not incomplete:
            return
        if (unavailable_reason := claim.unavailable_reason()) is not None:
            raise CoordinationUnavailableError(unavailable_reason, retry_after=1)
        if (holder := claim.holder()) is not None:
            raise SubscriptionBusyError(self._busy_sentence(holder), retry_after=1)
        if self._partitions.busy is not None:
            raise self._partitions.busy
        if incomplete:
            raise SubscriptionBusyError(
                "the partitions of the Ack-Token are not assigned yet", retry_after=1
            )

    def _busy_sentence(self, holder: str) -> str:
        """Return what this poll waited for: an earlier one, which the store itself may hold up.

        A client that polls one at a time meets its last poll while that acknowledges; so it does
        for as long as the store does not answer.
        """
        who = f"{self._request.consumer} of group {self._request.subscription.name}"
        if not holder.startswith("consumer "):
            return f"{who} has to wait for {holder}"
        try:
            self._context.backend.ready(STORE_CHECK_SECONDS)
        except RouterError as error:
            return (
                f"{who} has to wait until its poll before ends, which answers or acknowledges and"
                f" waits for the store: {error} That poll: {holder}"
            )
        return f"{who} is polling already: {holder}"

    def _give_up(self, claim: Claim) -> None:
        revoked = claim.revoked()
        if not revoked:
            return
        for partition in revoked:
            self._partitions.close(partition)
        claim.give_up(sorted(revoked))

    def token(self, tokens: AckTokens) -> str:
        """Return what names the messages read."""
        return tokens.write(self._consumer, self._partitions.answered())

    def acknowledge(self, messages: Sequence[Stored]) -> None:
        """Acknowledge what is out, or leave that to a later poll, and end. Never raises."""
        if self._claim is None:
            return
        last = self._partitions.still_held(self._claim)
        self._context.figures.note_answer(messages)
        if self._retain(self._claim, last):
            return
        pending = tuple(last.values()) if self._request.ack is AckMode.NEXT else ()
        if self._request.ack is AckMode.WRITTEN:
            for partition, position in last.items():
                self._partitions.acknowledge(partition, position)
        self.end(PollOutcome.DELIVERED, pending)

    def _retain(self, claim: Claim, last: Mapping[int, Position]) -> bool:
        """Leave the claim to the id's next poll here; False: it has to be released."""
        context, partitions, ack = self._context, self._partitions, self._request.ack
        if not self._reader.is_retained or ack is AckMode.EXPLICIT or context.stopping:
            return False
        if not context.retained.polled_lately(self._consumer) or claim.recalled():
            return False
        if not partitions.can_resume():
            return False
        is_next = ack is AckMode.NEXT
        if not is_next and not partitions.acknowledge_soon(last):
            return False
        self._claim = None
        retained = partitions.retain(claim, self._count, last if is_next else {})
        context.retained.put(self._consumer, retained)
        self._memory.release()
        context.figures.outcomes.append(PollOutcome.DELIVERED.value)
        return True

    def end(self, outcome: PollOutcome, pending: tuple[Position, ...] = ()) -> None:
        """Close and release everything; callable twice."""
        if outcome is PollOutcome.EMPTY and not self._request.limited:
            outcome = PollOutcome.REFUSED
        self._memory.release()
        if self._release(outcome, pending):
            self._context.figures.outcomes.append(outcome.value)

    def _release(self, outcome: PollOutcome, pending: tuple[Position, ...] = ()) -> bool:
        """Release the claim; return False if there was none."""
        claim = self._drop()
        if claim is None:
            return False
        try:
            claim.release(outcome, pending)
        except RouterError as error:
            _log.warning("release failed", reason=str(error))
        return True

    def _drop(self) -> Claim | None:
        claim, self._claim = self._claim, None
        self._partitions.close_all()
        return claim


@dataclass(eq=False, slots=True)
class AnsweredPoll:
    """A poll that has its answer: `messages`, held until `delivered` or `abandon`.

    `token` names them for the poll that acknowledges them, if the request is explicit.
    """

    _session: PollSession | DirectSession
    messages: list[Stored]
    token: str | None
    topic: TopicName

    def delivered(self) -> None:
        """Acknowledge what was answered as the request says, and end. Never raises."""
        self._session.acknowledge(self.messages)

    def abandon(self) -> None:
        """End without acknowledging; after `delivered` it does nothing."""
        self._session.end(PollOutcome.REFUSED)


class PollServer:
    """Serves polls; calls wait, and may be made from many threads or greenlets."""

    def __init__(
        self,
        backend: Backend,
        node: Node,
        directory: TopicMetadataCache,
        options: ConsumeOptions,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.context = PollContext((backend, node, directory), options, metrics, clock)
        self.tokens = AckTokens(node.registry, options.backend_timeout)
        self._store = backend if isinstance(backend, Polling) else None
        self._oversized = OversizedEntries(
            backend, directory, metrics, options.dead_letter_topic, options.backend_timeout
        )

    def poll(
        self,
        request: PollRequest,
        mailbox: PollMailbox,
        client: WaitingClient,
        reader: OpenPartitionReader | None = None,
    ) -> AnsweredPoll:
        """Return messages as `poll_steps` does, waiting here."""
        return run_blocking(self.poll_steps(request, mailbox, client, reader))

    def poll_steps(
        self,
        request: PollRequest,
        mailbox: PollMailbox,
        client: WaitingClient,
        reader: OpenPartitionReader | None = None,
    ) -> Steps[AnsweredPoll]:
        """Return messages, or none when the time is over; the caller ends the poll it gets.

        `reader` says what is taken of each partition; None: what may be answered and acknowledged.
        Raises TopicNotFoundError, SubscriptionBusyError, TooManyRequestsError,
        MessageOverMaxBytesError, CoordinationUnavailableError, ClientGoneError, ConflictError for
        a request that only acknowledges and is overtaken, and what the backend raises; then nothing
        is held any more.
        """
        context = self.context
        session: PollSession | DirectSession
        if reader is None and self._store is not None:
            session = DirectSession(context, self._store, request, mailbox, client, self._oversized)
        else:
            reader = reader or AnswerReader(self._oversized, request)
            session = PollSession(context, request, mailbox, client, reader)
        figures = context.figures
        figures.waiting.add(mailbox)
        began = context.clock()
        try:
            messages = yield from session.run()
            token = session.token(self.tokens) if request.ack is AckMode.EXPLICIT else None
        except BaseException:
            session.end(PollOutcome.REFUSED)
            raise
        finally:
            figures.waiting.discard(mailbox)
            took = context.clock() - began - session.waited
            figures.seconds.append((session.waited, max(0.0, took)))
        if not messages:
            session.end(PollOutcome.REFUSED if context.stopping else PollOutcome.EMPTY)
        return AnsweredPoll(session, messages, token, request.subscription.topic)

    @property
    def is_direct(self) -> bool:
        """Return whether the store serves polls itself, and says when their time is over."""
        return self._store is not None

    def close(self) -> None:
        """End what is retained for polls that may come."""
        self.context.retained.close()

    def stop(self) -> None:
        """Answer all waiting polls now, and those that still come after one reading."""
        self.context.stopping = True
        self.context.unsent.stop()
        for mailbox in list(self.context.figures.waiting):
            mailbox.wake()
