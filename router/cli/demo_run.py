"""One run of the demo: makes its topics, publishes at a rate, and reads as two consumer groups."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final
from urllib.parse import quote

from router.backends import Start
from router.cli.connection import Consumption
from router.cli.demo_messages import DemoMessages, unreadable
from router.cli.http_client import HttpRequest
from router.cli.remote import RemoteConnection
from router.errors import (
    BackendUnavailableError,
    ForbiddenError,
    RouterError,
    TopicExistsError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from router.model import Message, Stored

ORDERS: Final = "demo-orders"
CLICKS: Final = "demo-clicks"
CUSTOMERS: Final = "demo-customers"
DEVICES: Final = "demo-devices"
DEAD_LETTERS: Final = f"{ORDERS}.dlq"
TOPICS: Final = (ORDERS, CLICKS, CUSTOMERS, DEVICES, DEAD_LETTERS)
PACKING, BILLING, ALARMS = "packing", "billing", "alarms"
TICK_SECONDS: Final = 0.5
FETCH_SECONDS: Final = 0.1
FIRST_FETCH_SECONDS: Final = 10.0
FIRST_MESSAGES: Final = 600
"""Published at once, so that no page is empty."""
MAX_FETCHES: Final = 20
"""Of one group in one tick."""
MAX_FETCHED: Final = 1_000
MAX_TICK_MESSAGES: Final = 5_000
"""Published in one tick, however long the router or this process stood still."""
MAX_LAG: Final = 2_000
"""Messages by which billing may lag; until then it reads a share of the orders."""
BILLED: Final = 0.75
_SHARES: Final = {ORDERS: 0.4, CLICKS: 0.45, CUSTOMERS: 0.05, DEVICES: 0.1}
_FATAL: Final = (BackendUnavailableError, ForbiddenError, UnauthenticatedError)


class Demo:
    """The demo on one router; its calls raise RouterError."""

    def __init__(
        self,
        there: RemoteConnection,
        messages: DemoMessages,
        report: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.published = 0
        self.dead_letters = 0
        self._there = there
        self._messages = messages
        self._report = report
        self._clock, self._sleep = clock, sleep
        self._name = f"demo-{secrets.token_hex(6)}"
        self._requests = count()
        self._due = dict.fromkeys(_SHARES, 0.0)
        self._makers: dict[str, Callable[[int], None]] = {}
        self._lag = 0
        self._billed = 0.0

    def create(self) -> None:
        """Create the topics that are not there; what this store does not have is left out."""
        for topic, partitions in ((ORDERS, 3), (CLICKS, 0), (DEAD_LETTERS, 0)):
            self._create(topic, partitions)
        self._makers[ORDERS] = self._publish_orders
        self._makers[CLICKS] = lambda n: self._publish(CLICKS, _made(self._messages.click, n))
        if self._possible("compacted topics", lambda: self._create(CUSTOMERS, 0, "compact")):
            self._makers[CUSTOMERS] = lambda n: self._publish(
                CUSTOMERS, _made(self._messages.customer, n)
            )
        if self._possible("streams", self._create_stream):
            self._makers[DEVICES] = self._publish_readings

    @property
    def topics(self) -> list[str]:
        """Return the topics to which it publishes."""
        return [*self._makers, DEAD_LETTERS]

    def run(self, rate: float, seconds: float) -> None:
        """Publish `rate` messages a second and read them for so long."""
        groups = [
            self._there.consume(ORDERS, name, f"{name}-1", Start.EARLIEST)
            for name in (PACKING, BILLING)
        ]
        try:
            packing, billing = groups
            begin = self._clock()
            self._tick(FIRST_MESSAGES, packing, billing, FIRST_FETCH_SECONDS)
            last = begin
            while (now := self._clock()) < begin + seconds:
                self._sleep(max(0.0, min(last + TICK_SECONDS, begin + seconds) - now))
                now = self._clock()
                self._tick(min(MAX_TICK_MESSAGES, rate * (now - last)), packing, billing)
                last = now
        finally:
            for group in groups:
                group.close()

    def _tick(
        self,
        messages: float,
        packing: Consumption,
        billing: Consumption,
        wait: float = FETCH_SECONDS,
    ) -> None:
        for topic, make in self._makers.items():
            self._due[topic] += messages * _SHARES[topic]
            whole = int(self._due[topic])
            self._due[topic] -= whole
            if whole:
                make(whole)
        for _ in range(MAX_FETCHES):
            if not packing.fetch(MAX_FETCHED, FETCH_SECONDS):
                break
            packing.acknowledge()
        share = 1.0 if self._lag > MAX_LAG else BILLED
        self._billed = min(MAX_FETCHED, self._billed + share * messages * _SHARES[ORDERS])
        for _ in range(MAX_FETCHES):
            if not self._bill(billing, int(self._billed), wait):
                break

    def _bill(self, billing: Consumption, limit: int, wait: float) -> bool:
        """Read some of the orders; those that cannot be read become dead dead_letters."""
        found = billing.fetch(limit, wait) if limit else []
        dead_letters = [
            _dead_letter(one, reason) for one in found if (reason := unreadable(one.message.value))
        ]
        self._publish(DEAD_LETTERS, dead_letters)
        self.dead_letters += len(dead_letters)
        if found:
            billing.acknowledge()
        self._lag -= len(found)
        self._billed -= len(found)
        return bool(found)

    def _publish_orders(self, number: int) -> None:
        self._publish(ORDERS, _made(self._messages.order, number))
        self._lag += number

    def _publish(self, topic: str, messages: list[Message]) -> None:
        if messages:
            request = f"{self._name}-{next(self._requests)}"
            self.published += self._there.publish(topic, messages, request)

    def _publish_readings(self, number: int) -> None:
        for _ in range(number):
            subject, body = self._messages.reading()
            path = f"/jetstream/publish/{quote(f'{DEVICES}.{subject}')}"
            # A repeat with the same id is stored once.
            headers = {"Nats-Msg-Id": f"{self._name}-{next(self._requests)}"}
            self._there.client.ask(HttpRequest("POST", path, None, body, headers))
            self.published += 1

    def _create(self, topic: str, partitions: int, cleanup: str | None = None) -> None:
        try:
            self._there.create_topic(topic, partitions, cleanup)
        except TopicExistsError:
            pass  # of an earlier run

    def _create_stream(self) -> None:
        try:
            self._jetstream(f"STREAM.INFO.{DEVICES}", {})
        except TopicNotFoundError:
            subjects = [f"{DEVICES}.>"]
            self._jetstream(f"STREAM.CREATE.{DEVICES}", {"name": DEVICES, "subjects": subjects})
        durable = {"durable_name": ALARMS, "ack_policy": "explicit"}
        body = {"stream_name": DEVICES, "config": durable}
        self._jetstream(f"CONSUMER.CREATE.{DEVICES}.{ALARMS}", body)

    def _jetstream(self, subject: str, body: Mapping[str, Any]) -> None:
        self._there.jetstream(subject, body)

    def _possible(self, what: str, create: Callable[[], None]) -> bool:
        """Return whether something could be created; report why not."""
        try:
            create()
        except _FATAL:
            raise
        except RouterError as error:
            self._report(f"The demo goes without {what}: {error}")
            return False
        return True


def remove(there: RemoteConnection) -> list[str]:
    """Delete the topics of the demo with their groups; return the names of the deleted ones."""
    return [topic for topic in TOPICS if _deleted(there, topic)]


def _deleted(there: RemoteConnection, topic: str) -> bool:
    try:
        there.delete_topic(topic)
    except TopicNotFoundError:
        return False
    return True


def _made(make: Callable[[], Message], number: int) -> list[Message]:
    return [make() for _ in range(number)]


def _dead_letter(stored: Stored, reason: str) -> Message:
    """Return a message as a dead letter, with its origin and the reason (docs/http.md)."""
    message = stored.message
    origin = {"router-topic": ORDERS, "router-error": reason}
    return Message(message.value, message.key, {**message.properties, **origin})
