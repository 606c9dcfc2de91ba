"""The waiting requests of one pull consumer: who gets the next message, and the statuses they get.

Theory of operation. Requests stand in a queue; the first one that can take a message gets it and
goes to the end of the queue, so that clients that pull at the same time share the messages. A
request ends when it has its messages or bytes, when its time is over, when its inbox has no
subscriber any more, or at the end of the stream if it does not wait. Each end but the third is sent
as a status. A priority policy (`priority.py`) passes requests over. Nothing here has a clock; times
are nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from router.broker.nats.consumers import priority
from router.broker.nats.consumers.priority import Backlog, Pin
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.jetstream.policies import PriorityPolicy
from router.wire.nats.jetstream.requests import PullRequest

PENDING_MESSAGES: Final = "Nats-Pending-Messages"
PENDING_BYTES: Final = "Nats-Pending-Bytes"
MAX_WAITING: Final = 10_000
"""Requests of one consumer, whatever its configuration allows."""
MAX_RUN_REQUESTS: Final = 64
"""Requests that share the messages of one run."""


class Status(NamedTuple):
    """A message to one subject: a status line and headers, and a subject for the answer."""

    to: str
    code: int
    text: str
    headers: Sequence[tuple[str, str]] = ()
    reply: str = ""


class DeliveryRun(NamedTuple):
    """A subject that gets the next messages, and how many of them."""

    to: str
    max_messages: int


class SubjectInterest(Protocol):
    """What is known of a subject's subscribers."""

    def interested(self, subject: str) -> bool:
        """Return whether a subject has a subscriber."""
        ...

    def writable(self, subject: str) -> bool:
        """Return whether its subscribers can take more now."""
        ...


@dataclass(slots=True)
class WaitingRequest:
    """A request for messages; `max_bytes` 0: any number, `expires_ns` None: it waits for ever.

    `pin_id` is that of the client's pin, "": it has none.
    """

    request: PullRequest
    reply: str
    batch: int
    max_bytes: int
    expires_ns: int | None
    no_wait: bool
    heartbeat_ns: int
    beats_ns: int | None
    pin_id: str = ""
    delivered: int = 0

    def status(self, code: int, text: str) -> Status:
        """Return a status with how much of the request is left."""
        left = ((PENDING_MESSAGES, str(self.batch)), (PENDING_BYTES, str(self.max_bytes)))
        return Status(self.reply, code, text, left)


class PullQueue:
    """The requests of a consumer; `send` takes what is answered to them.

    `last_ns` is when a request was answered or ended last.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        interest: SubjectInterest,
        send: Callable[[Status], None],
        backlog: Callable[[], Backlog],
    ) -> None:
        self.config = config
        self.last_ns = 0
        self.pin = Pin()
        self._backlog = backlog
        self._interest = interest
        self._send = send
        self._waiting: deque[WaitingRequest] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Return whether a request waits."""
        return bool(self._waiting)

    @property
    def in_use(self) -> bool:
        """Return whether a client uses the consumer now."""
        return bool(self._waiting)

    @property
    def blocked(self) -> list[str]:
        """Return the inboxes of the requests whose clients cannot take more now."""
        return [one.reply for one in self._waiting if not self._can_write(one)]

    @property
    def pin_id(self) -> str:
        """Return the id of the pin that the next message has, "": it has none."""
        return self.pin.id

    def add(self, reply: str, body: bytes, now_ns: int, available: Callable[[], int]) -> bool:
        """Take a request; return False if it was refused or answered, by a status.

        `available` returns how many messages the consumer could deliver now.
        """
        self.last_ns = now_ns
        request = self._read(reply, body)
        if request is None:
            return False
        if request.id and request.id == self.pin.id:
            self.pin.extend(now_ns, self.config.priority_timeout)
        if self._waiting:
            self.expire(now_ns)
        if request.no_wait:
            count = available()
            if not count and not request.expires:
                return self._refuse(reply, 404, "No Messages")
            if 0 < count < sum(one.batch for one in self._waiting):
                return self._refuse(reply, 408, "Requests Pending")
        limit = self.config.max_waiting or MAX_WAITING
        if len(self._waiting) >= min(limit, MAX_WAITING):
            # A client with a heartbeat would retry at once; without an answer it waits for one.
            if not request.idle_heartbeat:
                self._refuse(reply, 409, "Exceeded MaxWaiting")
            return False
        heartbeat = request.idle_heartbeat
        self._waiting.append(
            WaitingRequest(
                request,
                reply,
                max(1, request.batch),
                max(0, request.max_bytes),
                now_ns + request.expires if request.expires else None,
                request.no_wait,
                heartbeat,
                now_ns + heartbeat if heartbeat > 0 else None,
                request.id,
            )
        )
        return True

    def choose(self, size: int, now_ns: int) -> str | None:
        """Return the inbox that gets a message of so many bytes, None: there is none now.

        The request counts as answered.
        """
        policy = self.config.priority_policy
        if policy is PriorityPolicy.PRIORITIZED:
            self._waiting = deque(sorted(self._waiting, key=lambda one: one.request.priority))
        for _ in range(len(self._waiting)):
            request = self._waiting.popleft()
            if request.expires_ns is not None and request.expires_ns <= now_ns:
                self._send(request.status(408, "Request Timeout"))
            elif not self._interest.interested(request.reply):
                continue
            elif not self._can_write(request):
                self._waiting.append(request)
            elif request.pin_id and request.pin_id != self.pin.id:
                self._send(request.status(423, "Nats-Wrong-Pin-Id"))
            elif policy is not PriorityPolicy.NONE and self._is_passed_over(request):
                self._waiting.append(request)
            elif request.max_bytes and size > request.max_bytes:
                self._send(request.status(409, "Message Size Exceeds MaxBytes"))
            else:
                self._count(request, size, now_ns)
                return request.reply
        return None

    def choose_run(self, now_ns: int) -> DeliveryRun | None:
        """Return the inbox that gets the next messages: all requests are of one client.

        None: there are several, a request is over or limits the bytes, or there are priorities.
        """
        waiting = self._waiting
        if not 0 < len(waiting) <= MAX_RUN_REQUESTS:
            return None
        if self.config.priority_policy is not PriorityPolicy.NONE:
            return None
        to, max_messages = waiting[0].reply, 0
        for request in waiting:
            over = request.expires_ns is not None and request.expires_ns <= now_ns
            if over or request.max_bytes or request.reply != to:
                return None
            max_messages += request.batch
        return DeliveryRun(to, max_messages)

    def run_sent(self, count: int, now_ns: int) -> None:
        """Count messages of a run for the requests in turns, and end those that have all."""
        waiting = self._waiting
        for _ in range(count):
            request = waiting.popleft()
            request.batch -= 1
            request.delivered += 1
            if request.heartbeat_ns > 0:
                request.beats_ns = now_ns + request.heartbeat_ns
            if request.batch:
                waiting.append(request)
        self.last_ns = now_ns

    def sent(self, to: str, size: int, now_ns: int) -> None:
        """End the request that the chosen message went to, if it has all."""
        del size, now_ns
        if not self._waiting or self._waiting[-1].reply != to:
            return
        request = self._waiting[-1]
        if request.batch <= 0:
            self._waiting.pop()
            # An inbox of the broker's own is closed by the last message.
            if request.max_bytes > 0 and self._interest.interested(request.reply):
                self._send(request.status(409, "Batch Completed"))

    def expire(self, now_ns: int, *, at_end: bool = False) -> None:
        """End what is over; `at_end`: there is no message, so that who does not wait ends too."""
        kept: deque[WaitingRequest] = deque()
        for request in self._waiting:
            if request.expires_ns is not None and request.expires_ns <= now_ns:
                self._send(request.status(408, "Request Timeout"))
                self.last_ns = max(self.last_ns, request.expires_ns)
            elif at_end and request.no_wait and (request.expires_ns is None or request.delivered):
                self._send(Status(request.reply, 404, "No Messages"))
                self.last_ns = now_ns
            elif self._interest.interested(request.reply):
                kept.append(request)
        self._waiting = kept

    def ended(self, now_ns: int) -> None:
        """Take note that there is no message now."""
        self.expire(now_ns, at_end=True)

    def tick(self, now_ns: int, headers: Sequence[tuple[str, str]]) -> None:
        """End what is over, and send the heartbeats that are due, with these headers."""
        self.expire(now_ns)
        self.pin.expire(now_ns)
        for request in self._waiting:
            if request.beats_ns is not None and request.beats_ns <= now_ns:
                request.beats_ns = now_ns + request.heartbeat_ns
                self._send(Status(request.reply, 100, "Idle Heartbeat", headers))

    def next_event(self) -> int | None:
        """Return when a request ends or needs a heartbeat, or a client is unpinned."""
        times = [time for one in self._waiting for time in (one.expires_ns, one.beats_ns)]
        times.append(self.pin.ends_ns)
        return min([time for time in times if time is not None], default=None)

    def close(self, code: int, text: str) -> None:
        """End all requests with a status."""
        while self._waiting:
            self._send(Status(self._waiting.popleft().reply, code, text))

    def _is_passed_over(self, request: WaitingRequest) -> bool:
        """Return whether the policy has a request wait although there is a message."""
        if self.config.priority_policy is PriorityPolicy.PINNED_CLIENT:
            return request.pin_id != self.pin.id
        if self.config.priority_policy is PriorityPolicy.OVERFLOW:
            return not priority.overflows(request.request, self._backlog())
        return False

    def _count(self, request: WaitingRequest, size: int, now_ns: int) -> None:
        pinned = self.config.priority_policy is PriorityPolicy.PINNED_CLIENT
        if pinned and not self.pin.id and request.request.group:
            request.pin_id = self.pin.assign(now_ns, self.config.priority_timeout)
        request.batch -= 1
        request.delivered += 1
        if request.max_bytes:
            request.max_bytes -= size
            if not request.max_bytes:
                request.batch = 0
        if request.heartbeat_ns > 0:
            request.beats_ns = now_ns + request.heartbeat_ns
        self.last_ns = now_ns
        self._waiting.append(request)

    def _can_write(self, request: WaitingRequest) -> bool:
        return self._interest.writable(request.reply)

    def _refuse(self, reply: str, code: int, text: str) -> bool:
        self._send(Status(reply, code, text))
        return False

    def _read(self, reply: str, body: bytes) -> PullRequest | None:
        """Return a request; None: it was refused."""
        try:
            request = PullRequest.read(body)
        except JetStreamError as failure:
            self._refuse(reply, 400, f"Bad Request - {failure.description}")
            return None
        if request.idle_heartbeat > 0 and 2 * request.idle_heartbeat > request.expires:
            self._refuse(reply, 400, "Bad Request - heartbeat value too large")
        elif refusal := self._over_limits(request) or self._wrong_priority(request, body):
            self._refuse(reply, *refusal)
        else:
            return request
        return None

    def _over_limits(self, request: PullRequest) -> tuple[int, str] | None:
        limits = self.config
        if 0 < limits.max_batch < request.batch:
            return 409, f"Exceeded MaxRequestBatch of {limits.max_batch}"
        if 0 < limits.max_expires < request.expires:
            return 409, f"Exceeded MaxRequestExpires of {_duration(limits.max_expires)}"
        if 0 < limits.max_bytes < request.max_bytes:
            return 409, f"Exceeded MaxRequestMaxBytes of {limits.max_bytes}"
        return None

    def _wrong_priority(self, request: PullRequest, body: bytes) -> tuple[int, str] | None:
        is_object = body.lstrip().startswith(b"{")
        return priority.refusal(self.config, request, self.pin, is_object=is_object)


def _duration(nanoseconds: int) -> str:
    """Return a duration in the notation of Go, for the common cases."""
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if nanoseconds >= unit:
            return f"{nanoseconds / unit:g}{name}"
    return f"{nanoseconds}ns"
