"""What all Pulsar connections of a broker share of its log."""

from __future__ import annotations

from router.broker.context import BrokerContext
from router.broker.pulsar.client import AttachedConsumer, HandleTable, PulsarProducer
from router.broker.pulsar.spec import PULSAR
from router.broker.pulsar.topic_lists import TopicLists
from router.broker.topics.topics import Topics


class LogContext:
    """The log of a broker as Pulsar commands use it."""

    def __init__(self, broker: BrokerContext, topics: Topics) -> None:
        self.topics = topics
        self.schemas = broker.schemas
        self.transcoder = broker.transcoder
        self.compactor = broker.compactor
        self.leases = broker.leases
        self.advertised = PULSAR.addresses(broker.settings)
        self.lists = TopicLists(topics)
        self.producers: set[HandleTable[PulsarProducer]] = set()
        self.consumers: set[HandleTable[AttachedConsumer]] = set()
        if broker.transactions is None:
            raise ValueError("a log has transactions")
        self.transactions = broker.transactions.transactions
        self.new_transaction_number = broker.transactions.new_producer_id
        self._names = 0
        watch = broker.counters.watch
        watch("router_broker_producers", lambda: sum(map(len, self.producers)))
        watch("router_broker_consumers", lambda: sum(map(len, self.consumers)))

    def new_name(self, kind: str) -> str:
        """Return a name that no producer or consumer ever had, over restarts too."""
        self._names += 1
        return f"{kind}-{self.topics.store.boot}-{self._names}"
