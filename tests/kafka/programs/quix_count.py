# mypy: ignore-errors
"""Counts words with Quix Streams, run by its own Python: a repartition topic, a state, a changelog.

Usage: quix_count.py BOOTSTRAP APPLICATION FOLDER INPUT OUTPUT, until SIGTERM.
"""

import sys

from quixstreams import Application
from quixstreams.models import TopicConfig

bootstrap, name, folder, source, target = sys.argv[1:]
app = Application(
    broker_address=bootstrap,
    consumer_group=name,
    state_dir=folder,
    auto_offset_reset="earliest",
    commit_interval=0.1,
    topic_create_timeout=30,
    loglevel="WARNING",
)
config = TopicConfig(num_partitions=2, replication_factor=1)


def count(_word, state):
    number = state.get("count", 0) + 1
    state.set("count", number)
    return str(number)


lines = app.topic(source, value_deserializer="str", config=config)
counts = app.topic(target, value_serializer="str", key_serializer="str", config=config)
app.dataframe(lines).apply(str.split, expand=True).group_by(
    lambda word: word,
    name="words",
    value_serializer="str",
    value_deserializer="str",
    key_serializer="str",
    key_deserializer="str",
).apply(count, stateful=True).to_topic(counts)
app.run()
