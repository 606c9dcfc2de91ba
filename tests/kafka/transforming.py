"""A process that consumes, transforms and produces in transactions, by librdkafka, until killed.

    python -m tests.kafka.transforming BOOTSTRAP SOURCE TARGET

It prints how many messages are in each transaction that it committed, a line for each. It ends with
the first call that fails, as after a kill of the broker: another process goes on where it stood,
and fences it.
"""

from __future__ import annotations

import faulthandler
import sys
from typing import Final

from confluent_kafka import Consumer, Producer

MAX_MESSAGES: Final = 50
"""Of one transaction."""
SECONDS: Final = 4.0
"""For a call."""
STUCK_SECONDS: Final = 6.0
"""For a transaction. After a kill of the broker librdkafka 2.16 may never return from
send_offsets_to_transaction: it sends no TxnOffsetCommit, and does not mind the time of the call."""


def main(bootstrap: str, source: str, target: str) -> None:
    """Copy the source to the same partitions of the target."""
    shared = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0}
    producer = Producer({**shared, "transactional.id": target, "linger.ms": 0})
    consumer = Consumer(
        {
            **shared,
            "group.id": target,
            "group.instance.id": target,
            "session.timeout.ms": 30_000,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
    )
    producer.init_transactions(SECONDS)
    consumer.subscribe([source])
    while True:
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
        messages = [one for one in consumer.consume(MAX_MESSAGES, 0.05) if one.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for one in messages:
            producer.produce(target, one.value(), partition=one.partition())
        places = consumer.position(consumer.assignment())
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(places, group, SECONDS)
        producer.commit_transaction(SECONDS)
        sys.stdout.write(f"{len(messages)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
