"""One consumer at run time: reads its stream, delivers, takes acknowledgements and requests.

Theory of operation. What is decided is in the state machine (`state.py`), the queue of
pull requests (`pull.py`) and the push outlet (`push.py`); `deliveries.py` has the task that
delivers. Here they are put together: requests, acknowledgements, interest, and one timer, which
fires when the first deadline of all parts is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from router.broker.consume.cursor.pending import MAX_PENDING, AckScope, DeliveryRules
from router.broker.nats.consumers.deliveries import (
    NS_PER_SECOND,
    Deliveries,
    DeliveryParts,
    DeliveryTally,
)
from router.broker.nats.consumers.log import ConsumerLog
from router.broker.nats.consumers.priority import Backlog, group_states
from router.broker.nats.consumers.pull import PullQueue, Status
from router.broker.nats.consumers.push import PushOutlet
from router.broker.nats.consumers.reading import MessageSource
from router.broker.nats.consumers.state import ConsumerState, DeliveryPosition
from router.broker.nats.protocol.acks import AckKind, AckSubject, read_ack
from router.broker.nats.protocol.hub import Hub
from router.broker.nats.streams.stream import Stream
from router.wire.nats import headers
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.policies import ReplayPolicy, Retention
from router.wire.nats.jetstream.replies import ConsumerInfo, SequencePair
from router.wire.nats.message import NatsMessage
from router.wire.nats.parser import AckedDelivery

FLOW_PREFIX: Final = "$JS.FC."
MIN_TIMER_NS: Final = 10_000_000
"""Between two times that a consumer's timer fires, however short its deadlines are."""


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """What consumers work with.

    `now_ns` counts from 1970 and never goes back; `expire` deletes a consumer that no client uses;
    `exhausted` hears of messages that were delivered for the last time, with their attempts.
    """

    hub: Hub
    now_ns: Callable[[], int]
    expire: Callable[[JetStreamConsumer], None]
    exhausted: Callable[[JetStreamConsumer, int, int], None]
    tally: DeliveryTally


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """What a consumer is: its stream, its name, and when it was made."""

    stream: Stream
    name: str
    created_ns: int


def ack_rules(config: ConsumerConfig, retention: Retention) -> DeliveryRules:
    """Return how messages of a consumer are acknowledged."""
    return DeliveryRules(
        AckScope(config.ack_policy.value),
        config.ack_wait,
        config.backoff,
        config.max_deliver,
        config.max_ack_pending if config.max_ack_pending > 0 else MAX_PENDING,
        keeps_exhausted=retention is not Retention.LIMITS,
    )


class JetStreamConsumer:
    """A consumer of a stream; `start` it when it is complete, `close` it once."""

    def __init__(
        self,
        context: ConsumerContext,
        record: ConsumerRecord,
        config: ConsumerConfig,
        state: ConsumerState,
        log: ConsumerLog,
    ) -> None:
        self.stream = stream = record.stream
        self.name = record.name
        self.created_ns = record.created_ns
        self.config = config
        self.state = state
        self.log = log
        self._context = context
        self._hub = context.hub
        self._made_ns = context.now_ns()
        self._acknowledged_ns: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = self._fired_ns = 0
        self._unwatch_interest: Callable[[], object] | None = None
        self._push: PushOutlet | None = None
        self._pull = PullQueue(config, self._hub, self._send_status, self._backlog)
        parts = DeliveryParts(
            self._hub, stream, self.name, state, log, context.now_ns, context.tally
        )
        source = MessageSource(stream, state, log, config.filters)
        self._deliveries = Deliveries(parts, config, source, self._pull, self._schedule)

    @property
    def num_pending(self) -> int:
        """Return how many messages were not delivered yet."""
        return self._deliveries.source.num_left

    @property
    def num_waiting(self) -> int:
        """Return how many pull requests wait."""
        self._pull.expire(self._context.now_ns())
        return len(self._pull)

    @property
    def bound(self) -> bool:
        """Return whether the deliver subject has a subscriber."""
        return self._push is not None and self._push.bound

    @property
    def paused_ns(self) -> int:
        """Return how many nanoseconds of a pause are left."""
        return self._deliveries.paused_ns

    def needs(self, sequence: int, subject: str) -> bool:
        """Return whether a message is this consumer's, and is not acknowledged yet."""
        return self._deliveries.source.matches(subject) and self.state.needs(sequence)

    def stored(self) -> None:
        """Deliver what was stored by any dialect."""
        self._deliveries.wake()

    def deleted(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Wait for messages no more that the stream has deleted."""
        if self._deliveries.closed:
            return
        full, found = not self.state.may_deliver_new, False
        for first, last in ranges:
            found = bool(self.state.settle_range(first, last)) or found
        if found:
            self.log.changed()
            if full:
                self._deliveries.wake()

    async def start(self) -> None:
        """Count what there is, and deliver. Raises DamagedError, OSError."""
        await self.count()
        if self.config.replay_policy is ReplayPolicy.ORIGINAL:
            self._deliveries.replay_to = self.stream.log.last_sequence
        self._open_push()
        self._go_on()

    async def update(self, config: ConsumerConfig) -> None:
        """Go on with another configuration.

        Raises OSError if it cannot be counted what is left: then deliveries try again.
        """
        old, self.config, self._deliveries.config = self.config, config, config
        self.state.configure(ack_rules(config, self.stream.config.retention))
        if old.priority_policy is not config.priority_policy:
            self._pull.pin.release()
        if old.filters != config.filters:
            self._replace_source()
        places = [(one.deliver_subject, one.deliver_group) for one in (old, config)]
        if places[0] != places[1]:
            self._open_push()
        self._deliveries.outlet.config = config
        self.log.changed()
        self._go_on()
        await self.count()

    def stream_changed(self) -> None:
        """Go on with another configuration of the stream; call `count` then."""
        self.state.configure(ack_rules(self.config, self.stream.config.retention))
        self._replace_source()
        self._go_on()

    async def count(self) -> None:
        """Return when it is counted what is left; raise OSError."""
        await self._deliveries.source.count()

    def close(self, code: int = 0, text: str = "") -> None:
        """End the consumer; its clients get a status if it has a code."""
        if self._deliveries.closed:
            return
        self._deliveries.close()
        if code:
            self._deliveries.outlet.close(code, text)
        if self._unwatch_interest is not None:
            self._unwatch_interest()
        self.log.close()
        self._deliveries.source.close()
        if self._timer is not None:
            self._timer.cancel()

    async def ended(self) -> None:
        """Return when nothing is delivered any more, after `close`."""
        await self._deliveries.ended()

    def request(self, reply: str, body: bytes) -> None:
        """Take a request for messages; answers go to `reply`."""
        if self._push is not None:
            self._send_status(Status(reply, 409, "Consumer is push based"))
            return
        if self._pull.add(reply, body, self._context.now_ns(), self._num_available):
            self._deliveries.wake_for_request()
        self._schedule()

    def unpin(self) -> None:
        """Have another client pinned by the next message."""
        self._pull.pin.release()
        self._deliveries.wake()

    def _backlog(self) -> Backlog:
        return Backlog(self.num_pending, self.state.num_pending_acks)

    def _num_available(self) -> int:
        """Return how many messages could be delivered now, many if that is to be found out."""
        if not self._deliveries.source.is_counted:
            return MAX_PENDING
        return self.num_pending + self.state.num_queued

    def acknowledge(self, ack: AckSubject, payload: bytes, reply: str) -> None:
        """Take an acknowledgement of any kind; a requested one is answered once it is durable."""
        kind = read_ack(payload)
        if kind.name == "+NXT":
            self._settle(ack)
            self.log.changed()
            self.request(reply, kind.argument)
        elif self.take(ack, kind) and reply:
            self.log.after(partial(self._confirm, (reply,)))

    def acknowledge_run(self, deliveries: Sequence[AckedDelivery]) -> None:
        """Take acknowledgements of the kind `+ACK`, in order, as `acknowledge` does each."""
        state = self.state
        full = not state.may_deliver_new
        if state.rules.acks is AckScope.EXPLICIT:
            done = state.acknowledge_each([one.sequence for one in deliveries])
        else:
            done = []
            for one in deliveries:
                done += state.acknowledge(one.sequence, one.consumer_sequence)
        self._acknowledged(done, full=full)
        self.log.changed()
        following = state.next_sequence
        replies = [one.reply for one in deliveries if one.reply and one.sequence < following]
        if replies:
            self.log.after(partial(self._confirm, replies))

    def _confirm(self, replies: Sequence[str]) -> None:
        for reply in replies:
            self._hub.publish(NatsMessage(reply))

    def take(self, ack: AckSubject, kind: AckKind) -> bool:
        """Take an acknowledgement of a kind other than `+NXT`; see `log.after` for its sync.

        Returns False if the message was not delivered, as far as is known after a crash: it will
        be, again.
        """
        if ack.sequence >= self.state.next_sequence:
            return False
        if kind.name in ("+ACK", "+TERM"):
            self._settle(ack)
        elif kind.name == "-NAK":
            self._refuse(ack, kind)
            self._schedule()
        elif kind.name == "+WPI":
            self.state.extend(ack.sequence, self._context.now_ns())
        self.log.changed()
        return True

    def confirm_flow(self, subject: str) -> None:
        """Take the answer to a flow control request."""
        if self._push is not None and self._push.confirm(subject):
            self._deliveries.wake()

    def info(self) -> ConsumerInfo:
        """Return the description of the consumer in the API."""
        state = self.state
        return ConsumerInfo(
            self.stream.name,
            self.name,
            self.created_ns,
            self.config,
            _shown(state.delivered, self._deliveries.last_ns),
            _shown(state.floor, self._acknowledged_ns),
            self._context.now_ns(),
            num_ack_pending=state.num_pending_acks,
            num_redelivered=state.num_redelivered,
            num_waiting=self.num_waiting,
            num_pending=self.num_pending,
            push_bound=self.bound,
            paused=self.paused_ns > 0,
            pause_remaining=self.paused_ns,
            priority_groups=group_states(self.config, self._pull.pin),
        )

    def _replace_source(self) -> None:
        """Find out again which messages are the consumer's."""
        self._deliveries.source.close()
        source = MessageSource(self.stream, self.state, self.log, self.config.filters)
        self._deliveries.source = source

    def _go_on(self) -> None:
        self._deliveries.wake()
        self._schedule()

    def _open_push(self) -> None:
        """Deliver to the deliver subject, if there is one."""
        if self._unwatch_interest is not None:
            self._unwatch_interest()
            self._unwatch_interest = None
        config = self.config
        if not config.is_push:
            return
        flow = f"{FLOW_PREFIX}{self.stream.name}.{self.name}."
        push = PushOutlet(config, self._hub, self._send_status, flow)
        self._push = self._deliveries.outlet = push

        def bind(interested: bool) -> None:
            push.bind(interested, self._context.now_ns())
            self._go_on()

        subject, group = config.deliver_subject, config.deliver_group
        self._unwatch_interest = self._hub.watch(subject, bind, group)
        if self._hub.interested(subject, group):
            bind(True)

    def _settle(self, ack: AckSubject) -> None:
        """Take an acknowledgement that ends the deliveries of one or more messages."""
        full = not self.state.may_deliver_new
        done = self.state.acknowledge(ack.sequence, ack.consumer_sequence)
        self._acknowledged(done, full=full)

    def _acknowledged(self, done: Sequence[int], *, full: bool) -> None:
        """Note what is acknowledged, and deliver what had to wait for it, if it was `full`."""
        self.log.acknowledged(done)
        self._acknowledged_ns = self._context.now_ns()
        if self.stream.config.retention is not Retention.LIMITS:
            for sequence in done:
                self.stream.acknowledged(sequence)
        if full:
            self._deliveries.wake()

    def _refuse(self, ack: AckSubject, kind: AckKind) -> None:
        attempts = self.state.attempts(ack.sequence)
        if not self.state.refuse(ack.sequence, self._context.now_ns(), kind.delay_ns):
            return
        if not self.state.attempts(ack.sequence):
            self._context.exhausted(self, ack.sequence, attempts)
        self._deliveries.wake()

    def _schedule(self) -> None:
        """Have the timer fire when the first of all deadlines is reached."""
        due = None if self._deliveries.closed else self._next_event()
        if due is None:
            return
        due = max(due, self._fired_ns + MIN_TIMER_NS)
        if self._timer is not None and self._timer_ns <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due
        delay = max(0, due - self._context.now_ns()) / NS_PER_SECOND
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        """Do what is due."""
        self._timer = None
        self._fired_ns = now = self._context.now_ns()
        ended = self.state.tick(now)
        for sequence in ended:
            self._context.exhausted(self, sequence, self.config.max_deliver)
        if ended:
            self.log.changed()
        last = self.state.delivered
        pairs = (("Nats-Last-Consumer", str(last.consumer)), ("Nats-Last-Stream", str(last.stream)))
        self._deliveries.outlet.tick(now, pairs)
        inactive = self._inactive_at()
        if inactive is not None and inactive <= now:
            self._context.expire(self)
            return
        self._go_on()

    def _next_event(self) -> int | None:
        deliveries = self._deliveries
        events = [self.state.next_deadline(), deliveries.outlet.next_event()]
        if self.config.inactive_threshold:
            events.append(self._inactive_at())
        # also of a pause that ended after delivering was tried, and before this
        if self.config.pause_until is not None and (deliveries.held or self.paused_ns):
            events.append(self.config.pause_until)
        first = None
        for time_ns in events:
            if time_ns is not None and (first is None or time_ns < first):
                first = time_ns
        return first

    def _inactive_at(self) -> int | None:
        """Return when the consumer is deleted if no client uses it until then."""
        outlet = self._deliveries.outlet
        if not self.config.inactive_threshold:
            return None
        used = max(self._made_ns, outlet.last_ns, self._deliveries.last_ns or 0)
        return (self._context.now_ns() if outlet.in_use else used) + self.config.inactive_threshold

    def _send_status(self, status: Status) -> None:
        block = headers.status(status.code, status.text, list(status.headers))
        self._hub.publish(NatsMessage(status.to, status.reply, block))


def _shown(position: DeliveryPosition, active_ns: int | None) -> SequencePair:
    return SequencePair(position.consumer, position.stream, active_ns)
