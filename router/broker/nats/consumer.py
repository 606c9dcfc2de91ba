"""One consumer at run time: reads its stream, delivers, takes acknowledgements and requests.

Theory of operation. What is decided is in the state machine (`consumer_state.py`), the queue of
pull requests (`pull.py`) and the push outlet (`push.py`). Here are the time, the reading and the
hub. A task runs only while there is something to deliver to a client that takes it; one timer fires
when the first deadline of all parts is reached. Whatever changes calls `wake`, which costs nothing
while no client waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from router.broker.nats.acks import AckKind, AckSubject, read_ack
from router.broker.nats.consumer_log import ConsumerLog
from router.broker.nats.consumer_reading import MessageSource
from router.broker.nats.consumer_state import AckRules, ConsumerState
from router.broker.nats.consumer_state import SequencePair as Position
from router.broker.nats.hub import Hub
from router.broker.nats.pull import PullQueue, Status
from router.broker.nats.push import PushOutlet
from router.broker.nats.stored_messages import StoredMessage
from router.broker.nats.stream import Stream
from router.broker.storage import DamagedError
from router.wire.nats import headers
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.policies import AckPolicy, ReplayPolicy, Retention
from router.wire.nats.jetstream.replies import ConsumerInfo, SequencePair
from router.wire.nats.message import NatsMessage

ACK_PREFIX: Final = "$JS.ACK."
FLOW_PREFIX: Final = "$JS.FC."
MESSAGES_PER_YIELD: Final = 64
RETRY_SECONDS: Final = 1.0
"""After a failure to read the stream."""
NS_PER_SECOND: Final = 1_000_000_000
SIZE_HEADER: Final = "Nats-Msg-Size"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerContext:
    """What consumers work with.

    `now_ns` counts from 1970 and never goes back; `expire` deletes a consumer that no client uses;
    `exhausted` hears of messages that were delivered for the last time, with their attempts.
    """

    hub: Hub
    now_ns: Callable[[], int]
    expire: Callable[[Consumer], None]
    exhausted: Callable[[Consumer, int, int], None]


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """What a consumer is: its stream, its name, and when it was made."""

    stream: Stream
    name: str
    created_ns: int


def ack_rules(config: ConsumerConfig, stream: Stream) -> AckRules:
    """Return how messages of a consumer are acknowledged."""
    return AckRules(
        config.ack_policy,
        config.ack_wait,
        config.backoff,
        config.max_deliver,
        config.max_ack_pending,
        keeps_exhausted=stream.config.retention is not Retention.LIMITS,
    )


class Consumer:
    """A consumer of a stream; `start` it when it is complete, `close` it once."""

    def __init__(
        self,
        context: ConsumerContext,
        record: ConsumerRecord,
        config: ConsumerConfig,
        state: ConsumerState,
        log: ConsumerLog,
    ) -> None:
        self.stream = record.stream
        self.name = record.name
        self.created_ns = record.created_ns
        self.config = config
        self.state = state
        self.log = log
        self.closed = False
        self.source = MessageSource(self.stream, state, log, config.filters)
        self._context = context
        self._hub = context.hub
        self._place = f"{self.stream.name}.{self.name}."
        self._retains = self.stream.config.retention is not Retention.LIMITS
        self._replay_to = 0
        self._paced_ns = self._paced_time_ns = 0
        self._used_ns = context.now_ns()
        self._delivered_ns: int | None = None
        self._acknowledged_ns: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._unwatch: list[Callable[[], object]] = []
        self._unwatch_interest: Callable[[], object] = int
        self.pull: PullQueue | None = None
        self.push: PushOutlet | None = None

    @property
    def num_pending(self) -> int:
        """Return how many messages were not delivered yet."""
        return self.source.num_left

    @property
    def num_ack_pending(self) -> int:
        """Return how many messages are delivered and not acknowledged."""
        return self.state.num_pending_acks

    @property
    def num_redelivered(self) -> int:
        """Return how many pending messages were delivered more than once."""
        return self.state.num_redelivered

    @property
    def num_waiting(self) -> int:
        """Return how many pull requests wait."""
        if self.pull is None:
            return 0
        self.pull.expire(self._context.now_ns())
        return len(self.pull)

    @property
    def bound(self) -> bool:
        """Return whether the deliver subject has a subscriber."""
        return self.push is not None and self.push.bound

    @property
    def paused_ns(self) -> int:
        """Return how many nanoseconds of a pause are left."""
        return max(0, (self.config.pause_until or 0) - self._context.now_ns())

    def needs(self, sequence: int, subject: str) -> bool:
        """Return whether a message is this consumer's, and is not acknowledged yet."""
        return self.source.matches(subject) and self.state.needs(sequence)

    async def start(self) -> None:
        """Count what there is, and deliver. Raises DamagedError, OSError."""
        await self.source.count()
        if self.config.replay_policy is ReplayPolicy.ORIGINAL:
            self._replay_to = self.stream.last_sequence
        self._unwatch = [
            self.stream.on_stored(self.wake),
            self.stream.on_deleted(self._forget),
        ]
        self._open_outlet()
        self.wake()
        self.schedule()

    async def update(self, config: ConsumerConfig) -> None:
        """Go on with another configuration. Raises DamagedError, OSError."""
        old, self.config = self.config, config
        self.state.rules = ack_rules(config, self.stream)
        if old.filters != config.filters:
            self.source.close()
            self.source = MessageSource(self.stream, self.state, self.log, config.filters)
            await self.source.count()
        if (
            old.deliver_subject != config.deliver_subject
            or old.deliver_group != config.deliver_group
        ):
            self._close_outlet()
            self._open_outlet()
        if self.pull is not None:
            self.pull.config = config
        if self.push is not None:
            self.push.config = config
        self.log.changed()
        self.wake()
        self.schedule()

    def close(self, code: int = 0, text: str = "") -> None:
        """End the consumer; waiting requests get a status if it has a code."""
        if self.closed:
            return
        self.closed = True
        if self.pull is not None and code:
            self.pull.close(code, text)
        elif self.push is not None and code and self.push.bound:
            self._send_status(Status(self.push.subject, code, text))
        self._close_outlet()
        for cancel in self._unwatch:
            cancel()
        self.log.close()
        self.source.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def request(self, reply: str, body: bytes) -> None:
        """Take a request for messages; answers go to `reply`."""
        if self.pull is None:
            self._send_status(Status(reply, 409, "Consumer is push based"))
            return
        available = self.num_pending + self.state.num_queued
        if self.pull.add(reply, body, self._context.now_ns(), available):
            self.wake()
        self.schedule()

    def acknowledge(self, ack: AckSubject, payload: bytes, reply: str) -> None:
        """Take an acknowledgement of any kind; a requested one is answered once it is durable."""
        state, now = self.state, self._context.now_ns()
        kind = read_ack(payload)
        if kind.name in ("+ACK", "+TERM", "+NXT"):
            full = not state.may_deliver_new
            self._settle(state.acknowledge(ack.sequence, ack.consumer_sequence))
            self._acknowledged_ns = now
            if full:
                self.wake()
        elif kind.name == "-NAK":
            self._refuse(ack, kind)
        elif kind.name == "+WPI":
            state.extend(ack.sequence, now)
        self.log.changed()
        if kind.name == "+NXT":
            self.request(reply, kind.argument)
        else:
            if reply:
                self.log.after(lambda: self._hub.publish(NatsMessage(reply)))
            self.schedule()

    def confirm_flow(self, subject: str) -> None:
        """Take the answer to a flow control request."""
        if self.push is not None and self.push.confirm(subject):
            self.wake()

    def info(self) -> ConsumerInfo:
        """Return what the API says of the consumer."""
        now, state = self._context.now_ns(), self.state
        return ConsumerInfo(
            self.stream.name,
            self.name,
            self.created_ns,
            self.config,
            _shown(state.delivered, self._delivered_ns),
            _shown(state.floor, self._acknowledged_ns),
            now,
            num_ack_pending=self.num_ack_pending,
            num_redelivered=self.num_redelivered,
            num_waiting=self.num_waiting,
            num_pending=self.num_pending,
            push_bound=self.bound,
            paused=self.paused_ns > 0,
            pause_remaining=self.paused_ns,
        )

    def wake(self) -> None:
        """Deliver what can be delivered."""
        if self._task is not None:
            self._again = True
        elif self._is_ready():
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def schedule(self) -> None:
        """Have the timer fire when the first of all deadlines is reached."""
        if self.closed:
            return
        due = self._next_event()
        if due is None or (self._timer is not None and self._timer_ns <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = due
        delay = max(0, due - self._context.now_ns()) / NS_PER_SECOND
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    async def idle(self) -> None:
        """Return when nothing is delivered any more: a consumer that is closed has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _forget(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Wait for messages no more that the stream has deleted."""
        full, found = not self.state.may_deliver_new, False
        for first, last in ranges:
            found = bool(self.state.settle_range(first, last)) or found
        if found:
            self.log.changed()
            if full:
                self.wake()

    def _open_outlet(self) -> None:
        config = self.config
        if not config.is_push:
            self.pull = self.pull or PullQueue(config, self._hub, self._send_status)
            return
        flow = FLOW_PREFIX + self._place
        self.push = push = PushOutlet(config, self._hub, self._send_status, flow)
        subject, group = config.deliver_subject, config.deliver_group

        def bind(interested: bool) -> None:
            push.bind(interested, self._context.now_ns())
            self._used_ns = self._context.now_ns()
            self.wake()
            self.schedule()

        self._unwatch_interest = self._hub.watch(subject, bind, group)
        if self._hub.interested(subject, group):
            bind(True)

    def _close_outlet(self) -> None:
        if self.push is not None:
            self._unwatch_interest()
            self.push = None

    def _is_ready(self) -> bool:
        """Return whether a client waits for messages and may get some."""
        if self.closed or self.paused_ns:
            return False
        if self.push is not None:
            return self.push.bound and not self.push.stalled
        return bool(self.pull)

    async def _serve(self) -> None:
        retry = False
        try:
            while not self.closed:
                self._again = False
                await self._deliver()
                if not self._again:
                    break
        except (DamagedError, OSError) as failure:
            _log.error("consumer-cannot-read", consumer=self._place[:-1], reason=str(failure))
            retry = True
        finally:
            self._task = None
            if not self.closed:
                self.schedule()
                if retry:
                    asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake)

    async def _deliver(self) -> None:
        """Deliver until there is no message, or none that takes it."""
        since_yield = 0
        while self._is_ready():
            message = await self.source.next()
            if not self._is_ready():
                return
            if message is None:
                if self.pull is not None:
                    stalled = not self.state.may_deliver_new
                    self.pull.expire(self._context.now_ns(), at_end=not stalled)
                return
            if (wait := self._wait_ns(message)) > 0:
                await asyncio.sleep(wait / NS_PER_SECOND)
                continue
            if not self._send(message):
                self._wait_for_client()
                return
            since_yield += 1
            if since_yield % MESSAGES_PER_YIELD == 0:
                await asyncio.sleep(0)

    def _send(self, message: StoredMessage) -> bool:
        """Deliver one message; return False if no client takes it now."""
        state, now = self.state, self._context.now_ns()
        sequence = message.sequence
        attempt = state.attempts(sequence) + 1
        left = max(0, self.num_pending - (attempt == 1))
        number = state.delivered.consumer + 1
        reply = f"{ACK_PREFIX}{self._place}{attempt}.{sequence}.{number}.{message.time_ns}.{left}"
        block, payload = message.headers, message.payload
        if self.config.headers_only:
            block, payload = _with_size(block, len(payload)), b""
        size = len(message.subject) + len(reply) + len(block) + len(payload)
        to = self.push.choose() if self.push else self.pull.choose(size, now) if self.pull else None
        if to is None:
            return False
        state.deliver(sequence, now)
        if attempt == 1:
            self.source.taken(message)
        self.log.delivered(message)
        self._delivered_ns = self._used_ns = now
        self._hub.publish(NatsMessage(message.subject, reply, block, payload), to=to)
        if self.push is not None:
            self.push.sent(size, now)
        elif self.pull is not None:
            self.pull.completed(to)
        if self._retains and self.config.ack_policy is AckPolicy.NONE:
            self.stream.acknowledged(sequence)
        self._paced_time_ns, self._paced_ns = message.time_ns, now
        self.log.changed()
        return True

    def _wait_ns(self, message: StoredMessage) -> int:
        """Return how long a message waits for its turn: the pace of the original, or the rate."""
        since = self._context.now_ns() - self._paced_ns
        if self._paced_time_ns and message.sequence <= self._replay_to:
            return message.time_ns - self._paced_time_ns - since
        if self.config.rate_limit_bps and self._paced_ns:
            bits = 8 * (len(message.payload) + len(message.headers))
            return bits * NS_PER_SECOND // self.config.rate_limit_bps - since
        return 0

    def _wait_for_client(self) -> None:
        """Go on when the client that cannot take more can do so again."""
        if self.push is not None:
            blocked = self.push.subject if self.push.bound and not self.push.stalled else None
        else:
            blocked = self.pull.blocked if self.pull is not None else None
        if blocked is not None:
            self._hub.when_writable(blocked, self.wake)

    def _refuse(self, ack: AckSubject, kind: AckKind) -> None:
        attempts = self.state.attempts(ack.sequence)
        now = self._context.now_ns()
        if not self.state.refuse(ack.sequence, now, kind.delay_ns):
            return
        if not self.state.attempts(ack.sequence):
            self._context.exhausted(self, ack.sequence, attempts)
        self.wake()

    def _settle(self, sequences: Sequence[int]) -> None:
        self.log.acknowledged(sequences)
        if self._retains:
            for sequence in sequences:
                self.stream.acknowledged(sequence)

    def _fire(self) -> None:
        """Do what is due."""
        self._timer = None
        now = self._context.now_ns()
        ended = self.state.tick(now)
        for sequence in ended:
            self._context.exhausted(self, sequence, self.config.max_deliver)
        if ended:
            self.log.changed()
        last = self.state.delivered
        pairs = (("Nats-Last-Consumer", str(last.consumer)), ("Nats-Last-Stream", str(last.stream)))
        if self.pull is not None:
            self.pull.expire(now)
            self.pull.beat(now, pairs)
        if self.push is not None:
            self.push.beat(now, pairs)
        inactive = self._inactive_at()
        if inactive is not None and inactive <= now:
            self._context.expire(self)
            return
        self.wake()
        self.schedule()

    def _next_event(self) -> int | None:
        events = [self.state.next_deadline(), self._inactive_at()]
        if self.pull is not None:
            events.append(self.pull.next_event())
        if self.push is not None:
            events.append(self.push.next_event())
        if self.paused_ns:
            events.append(self.config.pause_until)
        return min((one for one in events if one is not None), default=None)

    def _inactive_at(self) -> int | None:
        """Return when the consumer is deleted if no client uses it until then."""
        if not self.config.inactive_threshold or self.bound:
            return None
        used = self._used_ns
        if self.pull is not None:
            waits = len(self.pull) > 0
            used = self._context.now_ns() if waits else max(used, self.pull.last_ns)
        return used + self.config.inactive_threshold

    def _send_status(self, status: Status) -> None:
        block = headers.status(status.code, status.text, list(status.headers))
        self._hub.publish(NatsMessage(status.to, status.reply, block))


def _with_size(block: bytes, size: int) -> bytes:
    """Return headers with the size of the payload that is left out."""
    return headers.build([*(headers.read(block) if block else ()), (SIZE_HEADER, str(size))])


def _shown(position: Position, active_ns: int | None) -> SequencePair:
    return SequencePair(position.consumer, position.stream, active_ns)


def paused(config: ConsumerConfig, until_ns: int | None) -> ConsumerConfig:
    """Return a configuration that pauses until a time, None: not at all."""
    return replace(config, pause_until=until_ns)
