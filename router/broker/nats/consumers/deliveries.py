"""The task of one consumer that reads its messages and sends them to clients.

Theory of operation. The task runs only while there is something to deliver to a client that takes
it. Whatever changes calls `wake`, which costs nothing while no client waits. Between the choice of
a message and its delivery nothing is waited for, so that the state machine, the source and the
outlet agree.

Where one client is to get the next messages, those that were read ahead go to it as a run: what is
checked for each of them otherwise is checked once, and they leave in one write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from router.broker.nats.consumers.log import ConsumerLog
from router.broker.nats.consumers.priority import PIN_ID
from router.broker.nats.consumers.push import Outlet
from router.broker.nats.consumers.reading import MessageSource
from router.broker.nats.consumers.state import ConsumerState
from router.broker.nats.protocol.acks import ACK_PREFIX
from router.broker.nats.protocol.hub import Hub
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.stream import Stream
from router.broker.storage import DamagedError
from router.wire.nats import headers
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.policies import AckPolicy, Retention
from router.wire.nats.message import NatsMessage

SIZE_HEADER: Final = "Nats-Msg-Size"
MESSAGES_PER_YIELD: Final = 128
RETRY_SECONDS: Final = 1.0
"""After a failure to read the stream."""
NS_PER_SECOND: Final = 1_000_000_000

_new: Final[Any] = tuple.__new__
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


def steady_clock() -> Callable[[], int]:
    """Return a clock of nanoseconds since 1970 that does not go back while the process lives."""
    started_ns = time.time_ns() - time.monotonic_ns()
    return lambda: started_ns + time.monotonic_ns()


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
        """Deliver as `wake` does, without a task if what is requested was read ahead."""
        left = MESSAGES_PER_YIELD if self._task is None and self.source.is_counted else 0
        while self._is_ready():
            count = (self._send_run(left) or self._send_cached()) if left > 0 else 0
            if not count:
                self.wake()
                return
            left -= count

    def _send_cached(self) -> int:
        """Deliver the next message if it was read ahead; return how many went."""
        message = self.source.next_at_once()
        waits = message is None or self._wait_ns(message) > 0
        return 0 if message is None or waits else int(self._send(message))

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
        self.held = self.config.pause_until is not None and self.paused_ns > 0
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
            if not self.source.is_counted:
                await self.source.count()
                continue  # there may be another one
            count = self._send_run(MESSAGES_PER_YIELD) or await self._send_next()
            if count is None:
                return
            since_yield += count
            if since_yield >= MESSAGES_PER_YIELD:
                since_yield = 0
                await asyncio.sleep(0)

    async def _send_next(self) -> int | None:
        """Deliver the next message by itself; return how many went, None: none can go now."""
        source = self.source
        message = await source.next()
        if not self._is_ready():
            return None
        if source is not self.source:
            return 0
        if message is None:
            if self._parts.state.may_deliver_new:
                self.outlet.ended(self._parts.now_ns())
            return None
        if (wait := self._wait_ns(message)) > 0:
            await asyncio.sleep(wait / NS_PER_SECOND)
            return 0
        if not self._send(message):
            for subject in self.outlet.blocked:
                self._parts.hub.when_writable(subject, self.wake)
            return None
        return 1

    def _send_run(self, limit: int) -> int:
        """Deliver messages that were read ahead to one client; return how many.

        There are at most so many. 0: the next message goes by itself, if any does.
        """
        parts, source, config = self._parts, self.source, self.config
        if config.rate_limit_bps or config.headers_only:
            return 0
        now = parts.now_ns()
        outlet = self.outlet.choose_run(now)
        receiver = parts.hub.sole_receiver(outlet.to) if outlet is not None else None
        if outlet is None or receiver is None or not receiver.writable:
            return 0
        run = source.run_at_once(min(limit, outlet.max_messages, receiver.max_run))
        if not run or run[0].sequence <= self.replay_to:
            return 0
        state, prefix = parts.state, self._prefix
        if run[0].sequence > state.next_sequence:
            state.pass_over(run[0].sequence - 1)
        left = source.num_left
        sequences = [message.sequence for message in run]
        number = state.deliver_new(sequences, now)
        messages = []
        for sequence, subject, block, payload, time_ns, *_ in run:
            left -= 1
            reply = f"{prefix}1.{sequence}.{number}.{time_ns}.{left}"
            messages.append(_new(NatsMessage, (subject, reply, block, payload)))
            number += 1
        source.run_taken(run)
        parts.tally.deliveries += len(run)
        parts.log.delivered(run)
        self.last_ns, self._last_time_ns = now, run[-1].time_ns
        receiver.deliver_run(messages)
        self.outlet.run_sent(len(run), now)
        if config.ack_policy is AckPolicy.NONE:
            self._release(sequences)
        parts.log.changed()
        return len(run)

    def _release(self, sequences: Sequence[int]) -> None:
        """Keep messages no longer that are not to be acknowledged."""
        stream = self._parts.stream
        if stream.config.retention is not Retention.LIMITS:
            for sequence in sequences:
                stream.acknowledged(sequence)

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
        if pin_id := self.outlet.pin_id:
            block = headers.with_value(block, PIN_ID, pin_id)
        state.deliver(sequence, now)
        parts.tally.deliveries += 1
        if attempt == 1:
            self.source.taken(message)
        else:
            parts.tally.redeliveries += 1
        parts.log.delivered((message,))
        self.last_ns, self._last_time_ns = now, message.time_ns
        parts.hub.publish(NatsMessage(message.subject, reply, block, payload), to=to)
        self.outlet.sent(to, size, now)
        if self.config.ack_policy is AckPolicy.NONE:
            self._release((sequence,))
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
