"""Pulsar's transactions: the commands of the coordinator, and which transaction an id names.

Theory of operation. Clients look for a coordinator at the partitions of a topic that is none
(COORDINATOR_TOPIC); this broker has one, with the number 0. A transaction is one of
`broker.transactions` under a key of this dialect. Its id has the coordinator's number and one that
no transaction had before, over restarts too. A SEND or ACK names its transaction and joins it in
the step that takes effect: what was added to it before (ADD_PARTITION, ADD_SUBSCRIPTION) is checked
then and there, so that a client learns early what cannot take part.

A transaction belongs to the principal that began it. To others it does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from router.access.permissions import Right
from router.broker.consume import Partition
from router.broker.pulsar.client import Handler, PulsarClient
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import answer
from router.broker.storage import StoreError
from router.broker.topics.non_persistent import is_non_persistent
from router.broker.transactions import (
    Refusal,
    Transaction,
    TransactionCoordinator,
    TransactionError,
)
from router.errors import NotAllowedError, RouterError, TopicNotFoundError
from router.wire.pulsar import command
from router.wire.pulsar import pulsar_pb2 as pb

COORDINATOR_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""Begins the names of the partitions at which clients look for coordinators."""
DEFAULT_TIMEOUT_MS: Final = 60_000
MAX_TIMEOUT_MS: Final = 24 * 3_600_000
MAX_NAMES: Final = 1_000
"""Of partitions or subscriptions in one request."""
_COORDINATOR: Final = 0
_KEY: Final = "pulsar/"
_REFUSALS: Final = (RouterError, TransactionError, StoreError)


class _WithTransaction(Protocol):
    """A command that may name a transaction."""

    @property
    def txnid_most_bits(self) -> int:
        """The number of the coordinator."""
        ...

    @property
    def txnid_least_bits(self) -> int:
        """The number of the transaction."""
        ...


class ClientTransactions:
    """Finds the transactions that one client names."""

    def __init__(self, client: PulsarClient, transactions: TransactionCoordinator) -> None:
        self._client = client
        self._transactions = transactions

    def opened(self, named: _WithTransaction) -> Transaction:
        """Return the open transaction that a command names; raise TransactionError."""
        most, least = named.txnid_most_bits, named.txnid_least_bits
        found = self._transactions.find(f"{_KEY}{least}") if most == _COORDINATOR else None
        owner = self._client.identity.owner_name
        if found is None or (owner is not None and found.owner != owner):
            raise TransactionError(
                Refusal.UNKNOWN_TRANSACTION, f"no transaction ({most},{least}) is open"
            )
        if found.committed is not None:
            sentence = f"the transaction ({most},{least}) is being decided"
            raise TransactionError(Refusal.BUSY, sentence)
        return found


class TransactionCommands:
    """What one connection asks of the coordinator."""

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        self._client = client
        self._topics = log.topics
        self._new_number = log.new_transaction_number
        self._transactions = log.transactions
        self._ids = ClientTransactions(client, log.transactions)

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        kinds, serve = pb.BaseCommand, self._serve
        return {
            kinds.TC_CLIENT_CONNECT_REQUEST: serve(
                "tcClientConnectRequest", kinds.TC_CLIENT_CONNECT_RESPONSE, self._connect
            ),
            kinds.NEW_TXN: serve("newTxn", kinds.NEW_TXN_RESPONSE, self._begin),
            kinds.ADD_PARTITION_TO_TXN: serve(
                "addPartitionToTxn", kinds.ADD_PARTITION_TO_TXN_RESPONSE, self._add_partitions
            ),
            kinds.ADD_SUBSCRIPTION_TO_TXN: serve(
                "addSubscriptionToTxn",
                kinds.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
                self._add_subscriptions,
            ),
            kinds.END_TXN: serve("endTxn", kinds.END_TXN_RESPONSE, self._end),
        }

    def _serve(
        self,
        body: str,
        kind: pb.BaseCommand.Type,
        work: Callable[[Any], Coroutine[Any, Any, dict[str, int]]],
    ) -> Handler:
        """Return what answers a command, whose field in BaseCommand is `body`."""

        async def respond(request: Any) -> None:
            fields: dict[str, Any] = {
                name: getattr(request, name)
                for name in ("txnid_most_bits", "txnid_least_bits")
                if hasattr(request, name)
            }
            try:
                fields |= await work(request)
            except _REFUSALS as failure:
                fields["error"], fields["message"] = answer(failure)
            self._client.send(command(kind, request_id=request.request_id, **fields))

        return lambda frame: self._client.spawn(respond(getattr(frame.command, body)))

    async def _connect(self, request: pb.CommandTcClientConnectRequest) -> dict[str, int]:
        _check_coordinator(request.tc_id)
        return {}

    async def _begin(self, request: pb.CommandNewTxn) -> dict[str, int]:
        _check_coordinator(request.tc_id)
        named = request.HasField("txn_ttl_seconds")
        timeout_ms = request.txn_ttl_seconds if named else DEFAULT_TIMEOUT_MS
        if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
            sentence = f"a transaction lasts from 1 to {MAX_TIMEOUT_MS} ms"
            raise TransactionError(Refusal.INVALID_TIMEOUT, sentence)
        number = self._new_number()
        owner = self._client.identity.owner_name or ""
        self._transactions.begin(f"{_KEY}{number}", timeout_ms, owner)
        await self._topics.store.synced()
        return {"txnid_most_bits": _COORDINATOR, "txnid_least_bits": number}

    async def _add_partitions(self, request: pb.CommandAddPartitionToTxn) -> dict[str, int]:
        transaction = self._ids.opened(request)
        _check_count(request.partitions)
        partitions = [self._partition(name, Right.PUBLISH) for name in request.partitions]
        for one in partitions:
            self._transactions.join(transaction, one.ledger)
        await self._topics.store.synced()
        return {}

    async def _add_subscriptions(self, request: pb.CommandAddSubscriptionToTxn) -> dict[str, int]:
        self._ids.opened(request)
        _check_count(request.subscription)
        for one in request.subscription:
            self._partition(one.topic, Right.SUBSCRIBE)
        return {}

    async def _end(self, request: pb.CommandEndTxn) -> dict[str, int]:
        transaction = self._ids.opened(request)
        await self._transactions.decide(transaction, commit=request.txn_action == pb.COMMIT)
        return {}

    def _partition(self, name: str, right: Right) -> Partition:
        """Return a partition that can take part and that the client has a right on."""
        identity = self._client.identity
        if identity.authorizer is not None and not identity.trusted:
            identity.authorizer.authorize_name(identity.principal, name, right)
        if is_non_persistent(name):
            raise NotAllowedError("a topic that is not persistent has no transactions")
        found = self._topics.opened(name)
        if found is None:
            raise TopicNotFoundError(f"there is no topic {self._topics.parse(name)}")
        return found


def _check_coordinator(number: int) -> None:
    if number != _COORDINATOR:
        sentence = f"there is one coordinator, 0, and not {number}"
        raise TransactionError(Refusal.UNKNOWN_COORDINATOR, sentence)


def _check_count(names: Any) -> None:
    if len(names) > MAX_NAMES:
        raise NotAllowedError(f"a request adds at most {MAX_NAMES} to a transaction")
