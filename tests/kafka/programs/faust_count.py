# mypy: ignore-errors
"""Counts words with Faust, run by its own Python: a repartition topic, a table, a changelog.

Usage: faust_count.py BOOTSTRAP APPLICATION FOLDER INPUT OUTPUT, until SIGTERM.
"""

import sys

import faust

bootstrap, name, folder, source, target = sys.argv[1:]
app = faust.App(
    name,
    broker=f"kafka://{bootstrap}",
    datadir=folder,
    store="memory://",
    topic_partitions=2,
    topic_replication_factor=1,
    web_enabled=False,
    broker_commit_interval=0.1,
    # One that did not leave is waited for so long: a minute without this.
    broker_session_timeout=10.0,
    broker_heartbeat_interval=2.0,
)
lines = app.topic(source, value_type=bytes, value_serializer="raw")
words = app.topic(f"{name}-words", key_type=str, value_type=str, internal=True, partitions=2)
counted = app.topic(target, key_type=str, value_type=str, value_serializer="raw")
counts = app.Table("counts", default=int, partitions=2, key_type=str, value_type=int)


@app.agent(lines)
async def split(stream):
    async for line in stream:
        for word in line.decode().split():
            await words.send(key=word, value=word)


@app.agent(words)
async def count(stream):
    async for word in stream:
        counts[word] += 1
        await counted.send(key=word, value=str(counts[word]))


if __name__ == "__main__":
    faust.Worker(app, loglevel="warning", quiet=True).execute_from_commandline()
