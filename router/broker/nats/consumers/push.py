"""The outlet of one push consumer: its subject, interest in it, flow control and heartbeats.

Theory of operation. Messages go out while the subject has a subscriber that can take more. With
flow control the bytes that are sent and not confirmed are bounded by a window: when half of it is
used a request is sent, and its answer confirms everything that was sent before it. The window
begins small and doubles with each answer, as at nats-server. A heartbeat is sent when nothing else
was for its interval; one that waits for an answer names it, so that a client can give it late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from router.broker.nats.consumers.pull import DeliveryRun, PullQueue, Status, SubjectInterest
from router.wire.nats.jetstream.config import ConsumerConfig

MAX_WINDOW_BYTES: Final = 32 << 20
"""The window that nats-server ends with."""
FIRST_WINDOW_BYTES: Final = MAX_WINDOW_BYTES // 16
MAX_RUN: Final = 1_000
STALLED: Final = "Nats-Consumer-Stalled"
_ID_CHARACTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class PushOutlet:
    """Where a push consumer's messages go; `send` takes its heartbeats and flow control.

    `flow_prefix` is `$JS.FC.<stream>.<consumer>.`; the answers come to subjects below it.
    """

    pin_id: Final = ""

    def __init__(
        self,
        config: ConsumerConfig,
        interest: SubjectInterest,
        send: Callable[[Status], None],
        flow_prefix: str,
    ) -> None:
        self.config = config
        self.bound = False
        self.last_ns = 0
        self._interest = interest
        self._send = send
        self._flow_prefix = flow_prefix
        self._window = FIRST_WINDOW_BYTES
        self._unconfirmed = 0
        self._flow_request = ""
        self._requested_bytes = 0
        self._beats_ns: int | None = None

    @property
    def subject(self) -> str:
        """Return where the messages go."""
        return self.config.deliver_subject

    @property
    def stalled(self) -> bool:
        """Return whether flow control holds messages back."""
        return self.config.flow_control and self._unconfirmed > self._window

    @property
    def ready(self) -> bool:
        """Return whether there is a client, and flow control lets messages out."""
        return self.bound and not self.stalled

    @property
    def in_use(self) -> bool:
        """Return whether the subject has a subscriber."""
        return self.bound

    @property
    def blocked(self) -> list[str]:
        """Return the subject if its subscriber cannot take more now."""
        return [self.subject] if self.ready else []

    def choose(self, size: int, now_ns: int) -> str | None:
        """Return the subject if a message may go out now."""
        del size, now_ns
        return self.subject if self.ready and self._interest.writable(self.subject) else None

    def choose_run(self, now_ns: int) -> DeliveryRun | None:
        """Return the subject if messages may go out, and flow control counts none."""
        del now_ns
        return (
            DeliveryRun(self.subject, MAX_RUN)
            if self.ready and not self.config.flow_control
            else None
        )

    def run_sent(self, count: int, now_ns: int) -> None:
        """Put off the next heartbeat."""
        del count
        if self.config.idle_heartbeat:
            self._beats_ns = now_ns + self.config.idle_heartbeat

    def sent(self, to: str, size: int, now_ns: int) -> None:
        """Count a message of so many bytes."""
        del to
        if self.config.idle_heartbeat:
            self._beats_ns = now_ns + self.config.idle_heartbeat
        if not self.config.flow_control:
            return
        self._unconfirmed += size
        if self._flow_request:
            if self._unconfirmed - self._requested_bytes >= self._window:
                self._requested_bytes += size
        elif self._unconfirmed > self._window // 2:
            self._flow_request = self._flow_prefix + "".join(random.choices(_ID_CHARACTERS, k=4))  # noqa: S311 - no secret
            self._requested_bytes = self._unconfirmed
            self._send(Status(self.subject, 100, "FlowControl Request", (), self._flow_request))

    def confirm(self, subject: str) -> bool:
        """Take the answer to a request; return whether it was the open one."""
        if not self._flow_request or subject != self._flow_request:
            return False
        self._window = min(2 * self._window, MAX_WINDOW_BYTES)
        self._unconfirmed = max(0, self._unconfirmed - self._requested_bytes)
        self._flow_request, self._requested_bytes = "", 0
        return True

    def bind(self, bound: bool, now_ns: int) -> None:
        """Take note that the subject has subscribers, or none any more.

        What new subscribers were not sent they do not confirm.
        """
        self.bound, self.last_ns = bound, now_ns
        self._unconfirmed = self._requested_bytes = 0
        self._flow_request, self._window = "", FIRST_WINDOW_BYTES
        beats = bound and self.config.idle_heartbeat
        self._beats_ns = now_ns + self.config.idle_heartbeat if beats else None

    def ended(self, now_ns: int) -> None:
        """Do nothing: a push consumer has no end."""

    def tick(self, now_ns: int, headers: Sequence[tuple[str, str]]) -> None:
        """Send the heartbeat if it is due."""
        if self._beats_ns is None or now_ns < self._beats_ns:
            return
        self._beats_ns = now_ns + self.config.idle_heartbeat
        stalled = ((STALLED, self._flow_request),) if self._flow_request else ()
        self._send(Status(self.subject, 100, "Idle Heartbeat", (*headers, *stalled)))

    def next_event(self) -> int | None:
        """Return when a heartbeat is due."""
        return self._beats_ns

    def close(self, code: int, text: str) -> None:
        """Send a status to the client, if there is one."""
        if self.bound:
            self._send(Status(self.subject, code, text))


Outlet = PullQueue | PushOutlet
"""Where the messages of a consumer go; `last_ns` is when a client used it last."""
