"""What one poll holds while it runs: its claim, the partitions it opened, what it received."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

from router.backends import Claim, Consumer, Outcome
from router.errors import (
    BackendUnavailableError,
    ConsumerClosedError,
    CoordinationUnavailableError,
    FencedError,
    MessageOverMaxBytesError,
    RouterError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from router.model import UNDECODED, Position, Stored
from router.services.consume.wish import Client, ClientGoneError, PollMailbox, Wish
from router.services.memory_budget import Reservation
from router.waiting import Steps

if TYPE_CHECKING:
    from router.services.consume.subscriber import Subscriber

FOREIGN_LOOK: Final = 0.25
REOPENINGS: Final = 10
# A client that read its answer may poll again before its last poll has acknowledged and let go,
# here or on another node: that takes milliseconds, and even a poll that does not want to wait gets
# so long for it. A connection that broke between the nodes is often back as soon.
HANDOVER: Final = 0.5
STORE_CHECK_SECONDS: Final = 1.0
"""How long a poll that is refused looks whether the store answers."""
MESSAGE_BYTES: Final = 512
"""What a received message takes beside its value."""

_log = structlog.get_logger(__name__)


class Session:
    """One poll, from its claim to its end."""

    __slots__ = (
        "_busy",
        "_claim",
        "_claimed",
        "_client",
        "_consumers",
        "_deadline",
        "_done",
        "_ever",
        "_held",
        "_of",
        "_reopened",
        "_upto",
        "_wish",
        "mailbox",
        "waited",
    )

    def __init__(self, of: Subscriber, wish: Wish, mailbox: PollMailbox, client: Client) -> None:
        self.mailbox = mailbox
        self.waited = 0.0
        self._of = of
        self._wish = wish
        self._client = client
        self._deadline = of.clock() + wish.timeout
        self._claim: Claim | None = None
        self._claimed = 0.0
        self._consumers: dict[int, tuple[int, Consumer]] = {}
        self._upto: dict[int, Position] = {}
        self._done: dict[int, Position] = {}
        self._busy: SubscriptionBusyError | None = None
        self._ever = False
        self._reopened = 0
        self._held: Reservation | None = None

    def run(self) -> Steps[list[Stored]]:
        """Return messages, or none when the time is over; waits for its mailbox."""
        while True:
            partitions = self._of.ensure(self._wish)
            self._claim = claim = self._of.node.claim(
                self._wish.subscription,
                self._wish.consumer,
                partitions,
                self.mailbox,
                self._of.options.backend_timeout,
            )
            # Only now: making the group may have taken all the time that there was.
            self._claimed = self._of.clock()
            try:
                found = yield from self._wait(claim)
            except TopicNotFoundError:
                self._of.forget(self._wish.subscription)
                raise
            except BackendUnavailableError:
                if not claim.lost():
                    self._check_topic()
                    raise
                found = None
            if found is not None:
                if not found or self._hold(size := _answer_size(found)):
                    return found
                # Kept, it would take the memory that there is not. It is received again.
                del found
                self._release(Outcome.REFUSED)
                self._held = yield from self._of.unsent.reserve(size, 0, self._deadline)
                continue
            # The broker went away, and with it all that was held: claim again, while there is time.
            self._drop()
            if self._deadline <= self._of.clock():
                return []

    def _hold(self, size: int) -> bool:
        """Reserve the memory of an answer until it is sent; return False if there is none."""
        if self._held is not None and self._held.shrink(size):
            return True
        self._let_go()
        self._held = self._of.unsent.try_reserve(size)
        return self._held is not None

    def _let_go(self) -> None:
        """Give back the memory of the answer; callable twice."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _check_topic(self) -> None:
        """Say so if the consumers ended because the topic was deleted: raise TopicNotFoundError."""
        self._of.forget(self._wish.subscription)
        self._of.directory.partitions(self._wish.subscription.topic)

    def _wait(self, claim: Claim) -> Steps[list[Stored] | None]:
        """Return messages, none when the time is over, or None when the claim was lost."""
        while not claim.lost():
            self._open(claim)
            if found := self._look():
                return found
            self._check_limit(claim)
            self._give_up(claim)
            if self._client.gone():
                raise ClientGoneError
            left = self._left(claim)
            if left <= 0 or self._of.stopping:
                self._check_busy(claim)
                return []
            pause = FOREIGN_LOOK if self._busy else self._client.look_every()
            began = self._of.clock()
            yield self.mailbox, min(left, pause)
            self.waited += self._of.clock() - began
        return None

    def _left(self, claim: Claim) -> float:
        """Return for how many seconds this poll may go on waiting."""
        now = self._of.clock()
        left = self._deadline - now
        queued = claim.waiting() or (not self._ever and claim.trouble() is not None)
        return max(left, self._claimed + HANDOVER - now) if queued else left

    def _open(self, claim: Claim) -> None:
        """Open what was granted since the last look, and close what was withdrawn."""
        self._busy = None
        granted = claim.granted()
        for partition in self._consumers.keys() - granted.keys():
            self._forget(partition)
        for partition, generation in granted.items():
            known = self._consumers.get(partition)
            if known is not None and known[0] == generation:
                continue
            if known is not None:
                self._forget(partition)
            try:
                consumer = self._consume(partition, generation)
            except SubscriptionBusyError as error:
                # A client of another protocol reads it; its turn may end before ours.
                self._busy = error
                continue
            self._consumers[partition] = generation, consumer
            self._ever = True
            position = claim.pending().get(partition)
            # Refused after a reset: then it is to be delivered again.
            if position is not None and self._acknowledge(consumer, position):
                self._done[partition] = position

    def _consume(self, partition: int, generation: int) -> Consumer:
        subscription, timeout = self._wish.subscription, self._of.options.backend_timeout
        try:
            return self._of.backend.consume(
                subscription, partition, generation, self.mailbox, timeout
            )
        except SubscriptionNotFoundError:
            # Forgotten for lack of polls, or gone with its topic, since this worker last looked.
            self._of.ensure(self._wish, anew=True)
        return self._of.backend.consume(subscription, partition, generation, self.mailbox, timeout)

    def _look(self) -> list[Stored]:
        """Take what is there, beginning with another partition each time."""
        bound = self._wish.max_bytes
        room = self._of.options.max_bytes if bound is None else bound
        found: list[Stored] = []
        failure: RouterError | None = None
        for partition in self._turns():
            left = self._wish.limit - len(found)
            if left <= 0 or room <= 0:
                break
            try:
                some = self._receive(partition, left, room)
            except ConsumerClosedError as error:
                if not self._reopen(partition):
                    failure = error
                continue
            except RouterError as error:
                failure = error
                continue
            size = sum(stored.message.size() for stored in some)
            if size > room and (found or bound is not None):
                failure = MessageOverMaxBytesError(
                    f"the next message has {size} bytes, maxBytes is {bound}"
                )
                continue
            if some:
                found += some
                room -= size
                self._upto[partition] = some[-1].position
        if failure is not None and not found:
            raise failure
        return found

    def _reopen(self, partition: int) -> bool:
        """Let a partition be opened again that the store closed, as a reset does.

        Returns whether it may be: a store that closes whatever is opened is out of order.
        """
        self._check_topic()
        self._reopened += 1
        self._forget(partition)
        self.mailbox.wake()
        return self._reopened <= REOPENINGS

    def _receive(self, partition: int, limit: int, room: int) -> list[Stored]:
        consumer = self._consumers[partition][1]
        done = self._done.get(partition)
        while some := consumer.receive(limit, room, self._of.options.backend_timeout):
            fresh = some if done is None else [s for s in some if s.position > done]
            found = self._of.dead_letters.answerable(self._wish.subscription, consumer, fresh)
            if found:
                return list(found)
        return []

    def _turns(self) -> list[int]:
        partitions = list(self._consumers)
        if len(partitions) > 1:
            begin = random.randrange(len(partitions))  # noqa: S311 - fairness, not secrecy
            partitions = partitions[begin:] + partitions[:begin]
        return partitions

    def _check_limit(self, claim: Claim) -> None:
        after = claim.limited()
        if after is not None:
            raise TooManyRequestsError(
                "Please use a long poll setting to decrease the number of requests that result in"
                " empty responses.",
                retry_after=after,
            )

    def _check_busy(self, claim: Claim) -> None:
        """Say who holds the subscription, if nothing of it was ever had."""
        if self._ever:
            return
        if (trouble := claim.trouble()) is not None:
            raise CoordinationUnavailableError(trouble, retry_after=1)
        if (holder := claim.holder()) is not None:
            raise SubscriptionBusyError(self._busy_sentence(holder), retry_after=1)
        if self._busy is not None:
            raise self._busy

    def _busy_sentence(self, holder: str) -> str:
        """Say what this poll waited for: an earlier one, which the store itself may hold up.

        A client that polls one at a time meets its last poll while that acknowledges; so it does
        for as long as the store does not answer.
        """
        who = f"{self._wish.consumer} of group {self._wish.subscription.name}"
        if not holder.startswith("consumer "):
            return f"{who} has to wait for {holder}"
        try:
            self._of.backend.ready(STORE_CHECK_SECONDS)
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
            self._forget(partition)
        claim.give_up(sorted(revoked))

    def _forget(self, partition: int) -> None:
        """Close a partition that is not ours any more: nothing of it is acknowledged."""
        opened = self._consumers.pop(partition, None)
        self._done.pop(partition, None)
        self._upto.pop(partition, None)
        if opened is not None:
            _close(opened[1])

    def settle(self, messages: Sequence[Stored]) -> None:
        """Acknowledge what is out, or leave that to the id's next poll, and let go."""
        if self._claim is None:
            return
        metrics, upto = self._of.metrics, self._still_ours(self._claim)
        metrics.inc("router_delivered_messages_total", len(messages))
        metrics.inc("router_delivered_bytes_total", sum(len(s.message.value) for s in messages))
        if strange := sum(UNDECODED in s.message.properties for s in messages):
            metrics.inc("router_undecoded_messages_total", strange)
        pending = tuple(upto.values()) if self._wish.ack_next else ()
        if not self._wish.ack_next:
            for partition, position in upto.items():
                self._acknowledge(self._consumers[partition][1], position)
        self.end(Outcome.DELIVERED, pending)

    def _still_ours(self, claim: Claim) -> dict[int, Position]:
        """Return up to where partitions were answered that nobody else was given since.

        When the broker is gone nobody knows; then the backend's own fence decides.
        """
        granted, lost = claim.granted(), claim.lost()
        return {
            partition: position
            for partition, position in self._upto.items()
            if (opened := self._consumers.get(partition)) is not None
            and (lost or granted.get(partition) == opened[0])
        }

    def end(self, outcome: Outcome, pending: tuple[Position, ...] = ()) -> None:
        """Let everything go; callable twice."""
        self._let_go()
        if self._release(outcome, pending):
            self._of.metrics.inc("router_polls_total", outcome=outcome.value)

    def _release(self, outcome: Outcome, pending: tuple[Position, ...] = ()) -> bool:
        """Let the partitions go; return False if there were none."""
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
        for _, consumer in self._consumers.values():
            _close(consumer)
        self._consumers.clear()
        self._done.clear()
        self._upto.clear()  # of what was received: another claim's answer may hold less
        return claim

    def _acknowledge(self, consumer: Consumer, position: Position) -> bool:
        """Acknowledge; return False if the store refused that."""
        try:
            consumer.acknowledge(position, self._of.options.backend_timeout)
        except FencedError:
            _log.info("acknowledgement came too late", **self._names())
            return False
        except RouterError as error:
            _log.warning("acknowledgement failed", reason=str(error), **self._names())
        return True

    def _names(self) -> dict[str, str]:
        subscription = self._wish.subscription
        return {"topic": str(subscription.topic), "group": subscription.name}


def _answer_size(messages: Sequence[Stored]) -> int:
    """Return about how much memory an answer takes: the messages, and the body made of them."""
    return sum(2 * len(s.message.value) + MESSAGE_BYTES for s in messages)


def _close(consumer: Consumer) -> None:
    try:
        consumer.close()
    except RouterError as error:
        _log.warning("closing a consumer failed", reason=str(error))
