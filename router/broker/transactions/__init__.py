"""Transactions: writes and positions of groups that take effect together or not at all.

- `TransactionCoordinator` are those of a broker, whatever protocol began them: what each has in
partitions,
  how one is decided, and what a start finishes.
- `TransactionalProducers` are the names under which Kafka's producers come back (transactional
  ids): which of those with one name may write, and when its transaction is aborted.
- `TransactionCalls` are the calls of administration about them.
- A `TransactionError` refuses a call for one `Refusal`.
"""

from router.broker.transactions.calls import TransactionCalls
from router.broker.transactions.coordinator import TransactionCoordinator
from router.broker.transactions.errors import Refusal, TransactionError
from router.broker.transactions.producers import (
    ProducerEpoch,
    TransactionalProducer,
    TransactionalProducers,
)
from router.broker.transactions.transaction import Transaction

__all__ = [
    "ProducerEpoch",
    "Refusal",
    "Transaction",
    "TransactionCalls",
    "TransactionCoordinator",
    "TransactionError",
    "TransactionalProducer",
    "TransactionalProducers",
]
