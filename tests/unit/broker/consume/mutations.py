"""Faults that are planted in the engine, a line each, to see that the machine finds them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from router.broker.consume.cursor.backlog import BacklogCounter
from router.broker.consume.cursor.in_flight import InFlight, InFlightRange
from router.broker.consume.cursor.pending import Agenda, DeliveryRules, PendingDeliveries
from router.broker.consume.dispatch.dispatcher import Dispatcher, EntryFeed
from router.broker.consume.dispatch.individual import Individual
from router.broker.consume.dispatch.shared import Shared
from router.broker.consume.polls.confirming import NamedAnswer
from router.broker.consume.polls.reader import PollReader
from router.broker.consume.visible import Visible
from router.broker.nats.consumers.state import ConsumerState


@dataclass(frozen=True)
class Mutation:
    """A line of a method, and what stands in its place."""

    name: str
    owner: type
    method: str
    line: str
    instead: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the method be the mutated one while the block lasts."""
        method = getattr(self.owner, self.method)
        source = textwrap.dedent(inspect.getsource(method))
        assert source.count(self.line) == 1, f"{self.method} has no such line any more"
        made: dict[str, Any] = {}
        text = f"from __future__ import annotations\n{source.replace(self.line, self.instead)}"
        exec(compile(text, self.name, "exec"), vars(sys.modules[self.owner.__module__]), made)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.owner, self.method, made[self.method])
            yield


MUTATIONS = (
    Mutation(
        "a deadline is skipped",
        Agenda,
        "take",
        "first[0] <= rank",
        "first[0] <= 0",
    ),
    Mutation(
        "a delivery is not counted",
        PendingDeliveries,
        "count",
        "self.redelivered.get(key, 0) + 1",
        "1",
    ),
    Mutation(
        "a message is delivered once too often",
        DeliveryRules,
        "is_last",
        "self.max_deliver <= delivery",
        "self.max_deliver < delivery",
    ),
    Mutation(
        "the first backoff holds for all deliveries",
        DeliveryRules,
        "wait",
        "self.backoff[min(delivery, len(self.backoff)) - 1]",
        "self.backoff[0]",
    ),
    Mutation(
        "a refusal's delay is ignored",
        ConsumerState,
        "refuse",
        "now_ns + max(0, delay_ns)",
        "now_ns",
    ),
    Mutation(
        "progress gives no more time",
        ConsumerState,
        "extend",
        "now_ns + self.rules.wait(self.attempts(sequence))",
        "pending.deadlines.ranks[sequence]",
    ),
    Mutation(
        "a restart forgets the counts",
        ConsumerState,
        "_add",
        "if one.attempts > 1:",
        "if one.attempts > 100:",
    ),
    Mutation(
        "what is deleted is delivered",
        Visible,
        "messages",
        "if not deleted.count:",
        "if deleted is not None:",
    ),
    Mutation(
        "a return is not counted",
        Individual,
        "redeliver",
        "self._pending.count(entry)",
        "pass",
    ),
    Mutation(
        "what is returned comes no more",
        Shared,
        "_put_back",
        "self._pending.make_due(entry)",
        "pass",
    ),
    Mutation(
        "what is in flight comes again at once",
        InFlightRange,
        "is_over",
        "self.due <= now_ms or",
        "True or",
    ),
    Mutation(
        "what is in flight is forgotten too late",
        InFlight,
        "held",
        "if not span.is_over(terms, now_ms):",
        "if not span.is_over(terms, now_ms - 30_000):",
    ),
    Mutation(
        "an answer acknowledges one message less",
        PollReader,
        "acknowledge",
        "1 << upto.batch_index + 1",
        "1 << upto.batch_index",
    ),
    Mutation(
        "a named answer is not acknowledged",
        NamedAnswer,
        "acknowledge",
        "position is not None and acknowledge(reader, position)",
        "position is not None",
    ),
    Mutation(
        "a return skips the first entry",
        Dispatcher,
        "rewind",
        "self._source.cursor.mark_delete + 1",
        "self._source.cursor.mark_delete + 2",
    ),
    Mutation(
        "a poll takes what is deleted of a batch",
        PollReader,
        "_left",
        "left &= visible",
        "pass",
    ),
    Mutation(
        "a part of an entry is counted as if it was left",
        BacklogCounter,
        "backlog",
        "(live & ~left).bit_count()",
        "0",
    ),
    Mutation(
        "the feed begins one entry too late",
        EntryFeed,
        "take",
        "self.position = number + 1",
        "self.position = number + 2",
    ),
)
