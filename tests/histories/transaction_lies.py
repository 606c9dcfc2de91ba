"""Clients of transactions that do not tell the truth, each in one way."""

from __future__ import annotations

from router.wire.pulsar import pulsar_pb2 as pb
from tests.histories.pulsar_transactions import CommittedReader, Ids, TransactionalWire
from tests.histories.recording import Output
from tests.histories.transactions import TransactionalConnection


class DirtyReads(TransactionalConnection):
    """Reads what is not committed, too."""

    isolation = 0


class LostTransactions(TransactionalConnection):
    """Confirms transactions that it aborts."""

    def end_transaction(self, *, commit: bool) -> Output:
        return super().end_transaction(commit=False)


class EarlyPositions(TransactionalConnection):
    """Confirms positions of transactions that it commits at once, whatever becomes of those."""

    def commit_in(self, topic: str, offset: int) -> Output:
        super().commit(self._id, topic, offset)
        return {}


class LostPositions(TransactionalConnection):
    """Confirms positions that it does not commit."""

    def commit_in(self, topic: str, offset: int) -> Output:
        return {}


class TornTransactions(TransactionalConnection):
    """Reads one partition of a transaction before the other."""

    def read_committed(self, topic: str, partition: int) -> Output:
        found = super().read_committed(topic, partition)
        return {"values": found["values"][:-1]} if partition else found


class TornReads(CommittedReader):
    """Reads one topic of a transaction before the other."""

    def read_committed(self, topic: str, partition: int) -> Output:
        found = super().read_committed(topic, partition)
        return {"values": found["values"][:-1]} if partition else found


class RepeatedReads(CommittedReader):
    """Is sent the last message twice."""

    def read_committed(self, topic: str, partition: int) -> Output:
        values = super().read_committed(topic, partition)["values"]
        return {"values": values + values[-1:]}


class WritesOfNoTransaction(TransactionalWire):
    """Writes at once what is to be committed, whatever becomes of the transaction."""

    def append_in(self, partition: int, value: str, ids: Ids) -> Output:
        return super().append_in(partition, value, {})


class DoubledWrites(TransactionalWire):
    """Sends messages twice."""

    def append_in(self, partition: int, value: str, ids: Ids) -> Output:
        super().append_in(partition, value, ids)
        return super().append_in(partition, value, ids)


class UncommittedTransactions(TransactionalWire):
    """Confirms transactions that it aborts."""

    def end_transaction(self, ids: Ids, *, commit: bool) -> Output:
        return super().end_transaction(ids, commit=False)


class CommittedAborts(TransactionalWire):
    """Commits what it is to abort."""

    def end_transaction(self, ids: Ids, *, commit: bool) -> Output:
        return super().end_transaction(ids, commit=True)


class EarlyAcknowledgements(TransactionalWire):
    """Acknowledges at once what is to be committed, whatever becomes of the transaction."""

    def acknowledge_in(self, place: pb.MessageIdData, ids: Ids) -> Output:
        return super().acknowledge_in(place, {})


class ForgottenAcknowledgements(TransactionalWire):
    """Confirms acknowledgements that it does not send."""

    def acknowledge_in(self, place: pb.MessageIdData, ids: Ids) -> Output:
        return {}


class SharedAcknowledgements(TransactionalWire):
    """Confirms the acknowledgement of what another transaction has."""

    def acknowledge_in(self, place: pb.MessageIdData, ids: Ids) -> Output:
        found = super().acknowledge_in(place, ids)
        return {} if found.get("status") == "conflict" else found


class FalseConflicts(TransactionalWire):
    """Refuses acknowledgements of what no transaction has."""

    def acknowledge_in(self, place: pb.MessageIdData, ids: Ids) -> Output:
        return {"status": "conflict"}
