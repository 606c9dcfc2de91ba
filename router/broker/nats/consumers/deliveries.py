"""The task of one consumer that reads its messages and sends them to clients.

Theory of operation. The task runs only while there is something to deliver to a client that takes
it. Whatever changes calls `wake`, which costs nothing while no client waits. Between the choice of
a message and its delivery nothing is waited for, so that the state machine, the source and the
outlet agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from router.broker.nats.consumers.log import ConsumerLog
from router.broker.nats.consumers.pull import Outlet
from router.broker.nats.consumers.reading import MessageSource
from router.broker.nats.consumers.state import ConsumerState
from router.broker.nats.protocol.hub import Hub
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.stream import Stream
from router.broker.storage import DamagedError
from router.wire.nats import headers
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.policies import AckPolicy, Retention
from router.wire.nats.message import NatsMessage

ACK_PREFIX: Final = "$JS.ACK."
SIZE_HEADER: Final = "Nats-Msg-Size"
MESSAGES_PER_YIELD: Final = 64
RETRY_SECONDS: Final = 1.0
"""After a failure to read the stream."""
NS_PER_SECOND: Final = 1_000_000_000

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class DeliveryTally:
    """What was delivered by all consumers since the start, and how much of it again."""

    deliveries: int = 0
    redeliveries: int = 0
    exhausted: int = 0


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    """What messages pass on their way; `now_ns` is the consumer's clock."""

    hub: Hub
    stream: Stream
    name: str
    state: ConsumerState
    log: ConsumerLog
    now_ns: Callable[[], int]
    tally: DeliveryTally


class Deliveries:
    """Delivers the messages of a source to an outlet; both may be replaced.

    `rested` is called when there is nothing to deliver any more. `last_ns` is the time of the last
    delivery; messages up to `replay_to` go at the pace of their times.
    """

    def __init__(
        self,
        parts: DeliveryParts,
        config: ConsumerConfig,
        source: MessageSource,
        outlet: Outlet,
        rested: Callable[[], None],
    ) -> None:
        self.config = config
        self.source = source
        self.outlet = outlet
        self.last_ns: int | None = None
        self.replay_to = 0
        self.closed = False
        self._parts = parts
        self._prefix = f"{ACK_PREFIX}{parts.stream.name}.{parts.name}."
        self._rested = rested
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self.held = False
        """Whether a pause kept from delivering when that was last tried."""
        self._last_time_ns = 0

    @property
    def paused_ns(self) -> int:
        """Return how many nanoseconds of a pause are left."""
        until_ns = self.config.pause_until
        return 0 if until_ns is None else max(0, until_ns - self._parts.now_ns())

    def wake(self) -> None:
        """Deliver what can be delivered."""
        if self._task is not None:
            self._again, self.held = True, False
        elif self._is_ready():
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def wake_for_request(self) -> None:
        """Deliver as `wake` does, without a task if what is asked for was read ahead."""
        if self._task is None:
            for _ in range(MESSAGES_PER_YIELD):
                if not self._is_ready():
                    return
                message = self.source.next_at_once()
                if message is None or self._wait_ns(message) > 0 or not self._send(message):
                    break
        self.wake()

    def close(self) -> None:
        """Deliver no more."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Return when nothing is delivered any more, after `close`."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _is_ready(self) -> bool:
        """Return whether a client waits for messages and may get some."""
        self.held = self.paused_ns > 0
        return not self.closed and self.outlet.ready and not self.held

    async def _serve(self) -> None:
        retry = False
        try:
            while True:
                self._again = False
                await self._deliver()
                if not self._again or self.closed:
                    break
        except (DamagedError, OSError) as failure:
            _log.error("consumer-cannot-read", consumer=self._prefix, reason=str(failure))
            retry = True
        finally:
            self._task = None
            if not self.closed:
                self._rested()
                if retry:
                    asyncio.get_running_loop().call_later(RETRY_SECONDS, self.wake)

    async def _deliver(self) -> None:
        """Deliver until there is no message, or none that takes it."""
        since_yield = 0
        while self._is_ready():
            source = self.source
            message = await source.next()
            if not self._is_ready():
                return
            if source is not self.source:
                continue
            if message is None:
                if self._parts.state.may_deliver_new:
                    self.outlet.ended(self._parts.now_ns())
                return
            if (wait := self._wait_ns(message)) > 0:
                await asyncio.sleep(wait / NS_PER_SECOND)
                continue
            if not self._send(message):
                for subject in self.outlet.blocked:
                    self._parts.hub.when_writable(subject, self.wake)
                return
            since_yield += 1
            if since_yield % MESSAGES_PER_YIELD == 0:
                await asyncio.sleep(0)

    def _send(self, message: StoredMessage) -> bool:
        """Deliver one message; return False if no client takes it now."""
        parts, state, sequence = self._parts, self._parts.state, message.sequence
        now = parts.now_ns()
        attempt = state.attempts(sequence) + 1
        left = max(0, self.source.num_left - (attempt == 1))
        number = state.delivered.consumer + 1
        reply = f"{self._prefix}{attempt}.{sequence}.{number}.{message.time_ns}.{left}"
        block, payload = message.headers, message.payload
        if self.config.headers_only:
            block, payload = _with_size(block, len(payload)), b""
        size = len(message.subject) + len(reply) + len(block) + len(payload)
        to = self.outlet.choose(size, now)
        if to is None:
            return False
        state.deliver(sequence, now)
        parts.tally.deliveries += 1
        if attempt == 1:
            self.source.taken(message)
        else:
            parts.tally.redeliveries += 1
        parts.log.delivered(message)
        self.last_ns, self._last_time_ns = now, message.time_ns
        parts.hub.publish(NatsMessage(message.subject, reply, block, payload), to=to)
        self.outlet.sent(to, size, now)
        retains = parts.stream.config.retention is not Retention.LIMITS
        if retains and self.config.ack_policy is AckPolicy.NONE:
            parts.stream.acknowledged(sequence)
        parts.log.changed()
        return True

    def _wait_ns(self, message: StoredMessage) -> int:
        """Return how long a message waits for its turn: the pace of the original, or the rate."""
        if self.last_ns is None:
            return 0
        since = self._parts.now_ns() - self.last_ns
        if message.sequence <= self.replay_to:
            return message.time_ns - self._last_time_ns - since
        if rate := self.config.rate_limit_bps:
            return 8 * (len(message.payload) + len(message.headers)) * NS_PER_SECOND // rate - since
        return 0


def _with_size(block: bytes, size: int) -> bytes:
    """Return headers with the size of the payload that is left out."""
    return headers.build([*(headers.read(block) if block else ()), (SIZE_HEADER, str(size))])
