"""Pulsar's transactions over two topics and a source, beside one producer of Kafka's.

What is committed is seen whole, once and in order by readers of both protocols, and what is
acknowledged in a transaction does not come again if that is committed, and else does.
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Final

from router.model import Message
from router.wire.pulsar import pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient
from tests.histories.http_client import HttpConnection
from tests.histories.pulsar_members import PulsarMember
from tests.histories.pulsar_wire import FAILURES, NO_ENTRY, PulsarWire
from tests.histories.recording import Output, RefusedError, UnknownOutcomeError
from tests.histories.scenarios import Ports, Step, required
from tests.histories.transactions import PARTITIONS, TIMEOUT_MS, Transactions

SOURCE: Final = PARTITIONS
"""The partition whose messages are acknowledged."""
MESSAGES: Final = 8
GROUPS: Final = ("shared", "own")
SHORT_MS: Final = (50, 1_000)
BUSY_SECONDS: Final = 5.0
READ_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 40.0
"""A broker that looks for lost connections every 30 s gives back what they had."""
PAUSE_SECONDS: Final = 0.01
PERMITS: Final = 1_000
RANGE: Final = re.compile(r"\(\d+:(-?\d+)\.\.\d+:(\d+)\]")
Ids = dict[str, int]


def topic_of(name: str, partition: int) -> str:
    """Return Pulsar's name of a partition."""
    return f"{name}-partition-{partition}"


class TransactionalWire(PulsarWire):
    """A client that produces to all partitions and acknowledges in one group of the source."""

    def __init__(self, port: int, topic: str, group: str) -> None:
        super().__init__(port)
        self._topic, self._group = topic, group
        self._sequence = 0

    def begin(self, timeout_ms: int) -> Ids:
        """Return the id of a new transaction."""
        with self._answered() as client:
            begun = client.ask("NEW_TXN", "NEW_TXN_RESPONSE", txn_ttl_seconds=timeout_ms, tc_id=0)
            assert not begun.HasField("error"), begun
        return {name: getattr(begun, name) for name in ("txnid_most_bits", "txnid_least_bits")}

    def append_in(self, partition: int, value: str, ids: Ids) -> Output:
        """Send a message in a transaction."""
        self._sequence += 1
        payload = pack([Message(value.encode())], "raw", self._sequence, 1_000)
        with self._answered() as client:
            client.send("SEND", payload, producer_id=partition, sequence_id=self._sequence, **ids)
            frame = client.read()
            assert frame is not None, "closed"
            if frame.command.type == pb.BaseCommand.SEND_ERROR:
                refusal = frame.command.send_error
                assert refusal.error == pb.NotAllowedError, refusal
                return {"status": "refused", "reason": refusal.message}
            assert frame.command.type == pb.BaseCommand.SEND_RECEIPT, frame
        return {"offset": frame.command.send_receipt.message_id.entryId}

    def acknowledge_in(self, place: pb.MessageIdData, ids: Ids) -> Output:
        """Acknowledge a message of the source in a transaction."""
        acked = {"consumer_id": 0, "ack_type": pb.CommandAck.Individual, "message_id": [place]}
        with self._answered() as client:
            answer = client.ask("ACK", "ACK_RESPONSE", **acked, **ids)
            if not answer.HasField("error"):
                return {}
            if answer.error == pb.TransactionConflict:
                return {"status": "conflict"}
            assert answer.error in {pb.TransactionNotFound, pb.InvalidTxnStatus}, answer
        return {"status": "refused"}

    def end_transaction(self, ids: Ids, *, commit: bool) -> Output:
        """Commit or abort; the status `gone`: it was ended before."""
        action, until = pb.COMMIT if commit else pb.ABORT, time.monotonic() + BUSY_SECONDS
        while True:
            with self._answered() as client:
                answer = client.ask("END_TXN", "END_TXN_RESPONSE", txn_action=action, **ids)
                if not answer.HasField("error"):
                    return {}
                if answer.error == pb.TransactionNotFound:
                    return {"status": "gone"}
                is_busy = answer.error == pb.InvalidTxnStatus and time.monotonic() < until
                assert is_busy, answer
            time.sleep(PAUSE_SECONDS)

    def _connect(self) -> None:
        if self._client is not None:
            return
        super()._connect()
        try:
            self._open(self._client)
        except FAILURES as error:
            self.close()
            raise RefusedError(str(error)) from error

    def _open(self, client: RawClient | None) -> None:
        assert client is not None
        for partition in range(PARTITIONS):
            client.producer(topic_of(self._topic, partition), partition)
        source, kind = topic_of(self._topic, SOURCE), pb.CommandSubscribe.Shared
        client.subscribe(source, subscription=self._group, subType=kind)


class CommittedReader(PulsarMember):
    """Reads a topic from its start to its end, by a subscription of its own that is not stored."""

    durable = False

    def read_committed(self, topic: str, partition: int) -> Output:
        """Return all up to the message that is the last one at some time of the call."""
        self.group = secrets.token_hex(8)
        self.attach(topic_of(topic, partition), pb.CommandSubscribe.Exclusive, "reader")
        self._send("FLOW", messagePermits=PERMITS)
        until = time.monotonic() + READ_SECONDS
        while True:
            kind = "GET_LAST_MESSAGE_ID"
            found = self._answer(kind, f"{kind}_RESPONSE").last_message_id.entryId
            last = -1 if found == NO_ENTRY else found
            entries = [self._places[value].entryId for value in self._values]
            if last in {-1, *entries} or time.monotonic() > until:
                break
            time.sleep(PAUSE_SECONDS)
        read = [
            (one, entry) for one, entry in zip(self._values, entries, strict=True) if entry <= last
        ]
        self.leave()
        return {"values": [one for one, _ in read], "offsets": [entry for _, entry in read]}


class PulsarTransactions(Transactions):
    """Two producers that acknowledge in one group, one with a group of its own, and Kafka's."""

    label = "pulsar-transactions"
    keys = ("kafka",)
    Wire: type[TransactionalWire] = TransactionalWire
    Reader: type[CommittedReader] = CommittedReader

    def __init__(self, ports: Ports, name: str) -> None:
        super().__init__(ports, name)
        self.places: dict[str, pb.MessageIdData] = {}
        self._producers: list[_Producer] = []

    @property
    def source(self) -> str:
        """Return the topic whose messages are acknowledged."""
        return topic_of(self.name, SOURCE)

    def prepare(self) -> None:
        self.create_topic(PARTITIONS + 1)
        with closing(PulsarWire(self._ports.pulsar)) as wire:
            for number in range(MESSAGES):
                value = f"m{number}"
                self.places[value] = wire.publish(self.source, Message(value.encode()))
        for key in GROUPS:
            with closing(self._member(key)):
                pass

    def workers(self) -> list[Step]:
        groups = enumerate(("shared", "shared", "own"))
        self._producers = [_Producer(self, f"pulsar-{n}", key) for n, key in groups]
        steps = [one.step for one in self._producers]
        return [*steps, self._pulsar_reader("reader"), *super().workers()[:-1]]

    def conclude(self) -> None:
        for one in self._producers:
            one.conclude()
        super().conclude()
        reader, http = self.reader(), self.http()
        for partition in range(PARTITIONS):
            required(self._read_committed("last", reader, partition))
        for key in GROUPS:
            required(self._look("last", http, key))
            drain = partial(self._drain, key)
            required(self.history.record("last", "acked", drain, key=key))

    def transactional_wire(self, key: str) -> TransactionalWire:
        """Return a new client that acknowledges in a group."""
        made: TransactionalWire = self.Wire(self._ports.pulsar, self.name, key)
        return self._owned.enter_context(closing(made))

    def reader(self) -> CommittedReader:
        """Return a new reader."""
        return self._owned.enter_context(closing(self.Reader(self._ports.pulsar)))

    def _member(self, key: str) -> PulsarMember:
        """Return a consumer that is attached to a group; raise RefusedError."""
        member = self._owned.enter_context(closing(PulsarMember(self._ports.pulsar)))
        member.group = key
        member.attach(self.source, pb.CommandSubscribe.Shared, "taker")
        return member

    def _pulsar_reader(self, label: str) -> Step:
        reader, http = self.reader(), self.http()

        def step(chance: random.Random) -> None:
            kind, key = chance.random(), chance.choice(GROUPS)
            if kind < 0.6:
                self._read_committed(label, reader, chance.randrange(PARTITIONS))
            elif kind < 0.8:
                self._look(label, http, key)
            else:
                self._take(label, key)

        return step

    def _read_committed(self, label: str, reader: CommittedReader, partition: int) -> Output | None:
        read = partial(reader.read_committed, self.name, partition)
        return self.history.record(label, "read", read, partition=partition)

    def _look(self, label: str, http: HttpConnection, key: str) -> Output | None:
        """Record which messages the broker says are acknowledged."""
        return self.history.record(label, "acked", lambda: self._acked(http, key), key=key)

    def _acked(self, http: HttpConnection, key: str) -> Output:
        path = f"/admin/v2/persistent/public/default/{self.source}/internalStats"
        answer = http.ask("GET", path)
        if answer.status != 200:
            raise UnknownOutcomeError(str(answer))
        cursor = answer.json["cursors"][key]
        mark = int(cursor["markDeletePosition"].partition(":")[2])
        ranges = [(-1, mark)]
        for before, last in RANGE.findall(cursor["individuallyDeletedMessages"]):
            ranges.append((int(before), int(last)))
        acked = [
            value
            for value, place in self.places.items()
            if any(before < place.entryId <= last for before, last in ranges)
        ]
        return {"values": acked}

    def _take(self, label: str, key: str) -> None:
        """Record what a new consumer is sent, and give it back."""
        began = time.monotonic_ns()
        with closing(self._member(key)) as member:
            try:
                values = member.take(PERMITS)["values"]
                member.leave()
            except UnknownOutcomeError:
                return
        for value in values:
            self.history.note(label, "came", began, known=True, key=key, value=value)

    def _drain(self, key: str) -> Output:
        """Return what does not come when no transaction is open: what is acknowledged."""
        until, came, http = time.monotonic() + DRAIN_SECONDS, set[str](), self.http()
        with closing(self._member(key)) as member:
            came.update(member.take(PERMITS)["values"])
            # A consumer whose connection was lost has messages until the broker finds that out.
            while time.monotonic() < until:
                if came.union(self._acked(http, key)["values"]) == self.places.keys():
                    break
                time.sleep(PAUSE_SECONDS)
                came.update(member.take(0)["values"])
        return {"values": [value for value in self.places if value not in came]}


class _Producer:
    """Writes transactions; one whose end is not answered it ends again, and some it forgets."""

    def __init__(self, scenario: PulsarTransactions, label: str, key: str) -> None:
        self._scenario, self._label, self._key = scenario, label, key
        self._wire = scenario.transactional_wire(key)
        self._open: dict[str, Ids] = {}
        self._number = self._parts = 0
        self._transaction = ""
        self._is_short = False
        self._ending: bool | None = None

    def step(self, chance: random.Random) -> None:
        """Make one operation."""
        if not self._transaction:
            self._begin(chance)
        elif self._ending is not None:
            self._end(self._transaction, commit=self._ending == (chance.random() < 0.8))
        elif self._parts and chance.random() < 0.1 + 0.15 * self._parts:
            if self._is_short and chance.random() < 0.5:
                self._wire.close()
                self._transaction = ""
            else:
                self._end(self._transaction, commit=chance.random() < 0.75)
        elif chance.random() < 0.35:
            value = chance.choice(list(self._scenario.places))
            place = self._scenario.places[value]
            self._add("take", partial(self._wire.acknowledge_in, place), value=value)
        else:
            value, partition = self._scenario.value(self._label), chance.randrange(PARTITIONS)
            append = partial(self._wire.append_in, partition, value)
            self._add("append", append, value=value, partition=partition)

    def conclude(self) -> None:
        """Have nothing open any more."""
        for transaction in list(self._open):
            self._transaction = transaction
            self._end(transaction, commit=False)
            if self._transaction:
                raise RefusedError("not answered")

    def _begin(self, chance: random.Random) -> None:
        self._is_short = chance.random() < 0.2
        timeout_ms = chance.randint(*SHORT_MS) if self._is_short else TIMEOUT_MS
        self._number += 1
        transaction = f"{self._label}-{self._number}"
        begin = partial(self._wire.begin, timeout_ms)
        begun = self._record("begin", begin, transaction, limit=timeout_ms)
        if begun is not None:
            self._open[transaction] = begun
            self._transaction, self._parts, self._ending = transaction, 0, None

    def _add(self, op: str, call: Callable[[Ids], Output], **inputs: Any) -> None:
        ids = self._open[self._transaction]
        self._record(op, partial(call, ids), self._transaction, **inputs)
        self._parts += 1

    def _end(self, transaction: str, *, commit: bool) -> None:
        end = partial(self._wire.end_transaction, self._open[transaction], commit=commit)
        done = self._record("end", end, transaction, commit=commit)
        self._ending = commit
        if done is not None:
            del self._open[transaction]
            self._transaction = ""

    def _record(
        self, op: str, call: Callable[[], Output], transaction: str, **inputs: Any
    ) -> Output | None:
        return self._scenario.history.record(
            self._label, op, call, key=self._key, transaction=transaction, **inputs
        )
