"""Faults of one line that are planted in the product, which the simulation must find.

`python -m tests.simulation.mutations` plants each in turn, in a process of its own, runs seeds
until one fails, and prints a table. Nothing on disk is changed: the source of one module is
replaced as it is imported.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final, NamedTuple

MAX_RUNS: Final = 40
HOURS: Final = "0.5"
FAILED: Final = re.compile(r"FAILED seed (?P<seed>\S+): (?P<hours>\S+) h")


class Mutation(NamedTuple):
    """A planted fault: in a module, one text in place of another."""

    area: str
    name: str
    module: str
    before: str
    after: str


_STORAGE: Final = "router.broker.storage"
_CONSUME: Final = "router.broker.consume"
_STREAMS: Final = "router.broker.nats.streams"
_COMPACTION: Final = "router.broker.compaction"
_TRANSACTIONS: Final = "router.broker.transactions"
_COORDINATION: Final = "router.coordination.zookeeper"
_NODES: Final = "nodes"
"""The area of what is looked for among several nodes."""

MUTATIONS: Final = (
    Mutation(
        "storage",
        "a commit group is acknowledged before its sync",
        f"{_STORAGE}.journal",
        "        files.sync()\n        self._synced_at",
        "        self._synced_at",
    ),
    Mutation(
        "storage",
        "a journal file gets its name before its sync",
        f"{_STORAGE}.journal",
        "        self.sync()\n        self._disk.rename(self._begun",
        "        self._disk.rename(self._begun",
    ),
    Mutation(
        "storage",
        "the name of a journal file is not synced",
        f"{_STORAGE}.journal",
        "self.path(self.number))\n        self._disk.sync_folder(self._folder)",
        "self.path(self.number))",
    ),
    Mutation(
        "storage",
        "a failed write is acknowledged",
        f"{_STORAGE}.journal",
        "        if error is not None:\n            self._report(error)",
        "        if error is None and self._in_flight:\n            pass",
    ),
    Mutation(
        "storage",
        "a receipt does not wait for what is collected",
        f"{_STORAGE}.journal",
        "        if self.pending.parts:\n            self.pending.call(done)",
        "        if False:\n            self.pending.call(done)",
    ),
    Mutation(
        "storage",
        "a checkpoint cuts one journal file too many",
        f"{_STORAGE}.checkpointer",
        "number = context.journal.number + everything",
        "number = context.journal.number + 1",
    ),
    Mutation(
        "storage",
        "a checkpoint does not sync the segments",
        f"{_STORAGE}.checkpointer",
        "        await self.in_thread(context.writer.sync)",
        "        await asyncio.sleep(0)",
    ),
    Mutation(
        "storage",
        "a segment is not cut to its synced size",
        f"{_STORAGE}.writing",
        "            if size > segment.size:",
        "            if size > 2 * segment.size + 1000000:",
    ),
    Mutation(
        "recovery",
        "recovery does not copy the last commit groups",
        f"{_STORAGE}.recovery",
        "    if bodies:\n        files.write(bodies)",
        "    if not bodies:\n        files.write(bodies)",
    ),
    Mutation(
        "recovery",
        "recovery removes the old journal before the new one is there",
        f"{_STORAGE}.recovery",
        "    files.publish()\n    files.remove(number)",
        "    files.remove(number)\n    files.publish()",
    ),
    Mutation(
        "recovery",
        "recovery forgets the acknowledgements",
        f"{_STORAGE}.recovery",
        "subscription.cursor.apply(record.ack)",
        "pass",
    ),
    Mutation(
        "recovery",
        "recovery skips an entry",
        f"{_STORAGE}.recovery",
        "record.entry.entry_id >= target.next_entry",
        "record.entry.entry_id > target.next_entry",
    ),
    Mutation(
        "deduplication",
        "the last number of a producer may come again",
        "router.broker.pulsar.producing",
        "sequences[0] > mark.sequence",
        "sequences[0] >= mark.sequence",
    ),
    Mutation(
        "deduplication",
        "recovery forgets the producers",
        f"{_STORAGE}.partition",
        "        self.producers.record(name, state)\n        self._durable_states[name]",
        "        self._durable_states[name]",
    ),
    Mutation(
        "deduplication",
        "a checkpoint forgets the producers",
        f"{_STORAGE}.partition",
        "for name, state in self._durable_states.items() if known(name)",
        "for name, state in self._durable_states.items() if not known(name)",
    ),
    Mutation(
        "engine",
        "entries are delivered before they are durable",
        f"{_STORAGE}.partition",
        "        self.next_index = index + 1\n        self.appended_bytes += size",
        "        self.durable_entry = entry_id + 1\n"
        "        self.next_index = index + 1\n        self.appended_bytes += size",
    ),
    Mutation(
        "engine",
        "a refused answer is acknowledged",
        f"{_CONSUME}.polls.poll",
        "if self.is_answered and outcome is PollOutcome.DELIVERED:",
        "if self.is_answered:",
    ),
    Mutation(
        "engine",
        "an acknowledgement is not journalled",
        f"{_STORAGE}.cursor_log",
        "self._log(record, done)",
        "self._log(b'', done)",
    ),
    Mutation(
        "engine",
        "a checkpoint forgets the cursors",
        f"{_STORAGE}.checkpointer",
        "checkpoint.cursors.append(record.state())",
        "record.state()",
    ),
    Mutation(
        "engine",
        "an acknowledgement in a batch takes one message too many",
        f"{_CONSUME}.polls.reader",
        "(1 << upto.batch_index + 1)",
        "(1 << upto.batch_index + 2)",
    ),
    Mutation(
        "engine",
        "a poll goes on one entry too far",
        f"{_CONSUME}.polls.reader",
        "feed.position = self.subscription.cursor.mark_delete + 1",
        "feed.position = self.subscription.cursor.mark_delete + 1 + (monotonic() % 97 < 1)",
    ),
    Mutation(
        "leases",
        "the polls of a lost connection keep what they hold",
        f"{_CONSUME}.polls.engine",
        "            poll.end(PollOutcome.REFUSED)\n        self._polls.pop(client",
        "            pass\n        self._polls.pop(client",
    ),
    Mutation(
        "engine",
        "a connection that is lost is not forgotten",
        "router.broker.transport.connection",
        "        self._context.connections.discard(self)\n",
        "",
    ),
    Mutation(
        "storage",
        "a full segment stays open",
        f"{_STORAGE}.writing",
        "            self._close_synced(old)\n        entry",
        "            self._closed_unsynced = True\n        entry",
    ),
    Mutation(
        "engine",
        "what looks for dead connections outlives its listener",
        "router.broker.transport.listener",
        "            self._checking.cancel()\n",
        "            self._checking.done()\n",
    ),
    Mutation(
        "deletion",
        "the partition of a deleted topic stays in use",
        "router.broker.topics.topics",
        "self._partitions.pop(str(name.partition(index)), None)",
        "self._partitions.get(str(name.partition(index)))",
    ),
    Mutation(
        "deletion",
        "the number of a deleted partition is given again",
        f"{_STORAGE}.metadata",
        "CREATE TABLE ledgers (\n    id INTEGER PRIMARY KEY AUTOINCREMENT",
        "CREATE TABLE ledgers (\n    id INTEGER PRIMARY KEY",
    ),
    Mutation(
        "deletion",
        "the number of a deleted group is given again",
        f"{_STORAGE}.metadata",
        "CREATE TABLE subscriptions (\n    id INTEGER PRIMARY KEY AUTOINCREMENT",
        "CREATE TABLE subscriptions (\n    id INTEGER PRIMARY KEY",
    ),
    Mutation(
        "deletion",
        "a new stream knows the ids of the deleted one",
        f"{_STREAMS}.stream",
        "self.ids = MessageIds()",
        "self.ids = globals().setdefault((context.store, record.name), MessageIds())",
    ),
    Mutation(
        "deletion",
        "a deleted stream stays in use",
        f"{_STREAMS}.streams",
        "self._streams.pop(full, None)",
        "self._streams.get(full)",
    ),
    Mutation(
        "deletion",
        "a subject leads to the stream that is deleted",
        f"{_STREAMS}.streams",
        "        self._routes.clear()\n        self._named.clear()",
        "        self._named.clear()",
    ),
    Mutation(
        "retention",
        "the broker's retention takes from streams",
        f"{_STREAMS}.streams",
        "Policies(retention_ms=-1, retention_bytes=-1)",
        "Policies()",
    ),
    Mutation(
        "recovery",
        "a start forgets the consumers of a stream",
        "router.broker.nats.consumers.consumers",
        "                    await self._restore(stream, record)\n",
        "                    pass\n",
    ),
    Mutation(
        "retention",
        "retention does not wait for groups",
        f"{_STORAGE}.retention",
        "done = acked is None or segment.next_entry - 1 <= acked",
        "done = True",
    ),
    Mutation(
        "retention",
        "retention removes the segment in which a group is",
        f"{_STORAGE}.retention",
        "segment.next_entry - 1 <= acked",
        "segment.first_entry - 1 <= acked",
    ),
    Mutation(
        "leases",
        "a commit of an earlier generation is taken",
        "router.broker.kafka.groups",
        "caller.generation != self.generation",
        "caller.generation > self.generation",
    ),
    Mutation(
        "leases",
        "the session of a member does not end",
        "router.broker.kafka.groups",
        "if m.deadline <= now and not m.waits",
        "if m.deadline + 7200 <= now and not m.waits",
    ),
    Mutation(
        "engine",
        "a key goes to its new owner before the old one is done with it",
        f"{_CONSUME}.dispatch.key_shared",
        "return holder is not None and holder.consumer is not owner",
        "return holder is None and owner is None",
    ),
    Mutation(
        "engine",
        "what a shared consumer held is forgotten with it",
        f"{_CONSUME}.dispatch.individual",
        "(consumer, list(consumer.held))\n        self.run()\n\n    def redeliver",
        "(consumer, [])\n        self.run()\n\n    def redeliver",
    ),
    Mutation(
        "engine",
        "an explicit poll acknowledges what it is answered",
        f"{_CONSUME}.polls.poll",
        "elif upto or not self.request.explicit_partitions:",
        "else:",
    ),
    Mutation(
        "engine",
        "a failover consumer begins behind what the one before was sent",
        f"{_CONSUME}.dispatch.exclusive",
        "            self.rewind()\n            self.run()\n\n\n@lru_cache",
        "            self.run()\n\n\n@lru_cache",
    ),
    Mutation(
        "engine",
        "a failover consumer learns that it is active behind its first messages",
        "router.broker.pulsar.consumers",
        "        if consumer.permits:\n",
        "        if not consumer:\n",
    ),
    Mutation(
        "compaction",
        "the newest message of a key is deleted in place of the one before",
        f"{_COMPACTION}.key_index",
        "row = previous.number, message.number, previous.tombstone",
        "row = message.number, message.number, previous.tombstone",
    ),
    Mutation(
        "compaction",
        "a tombstone goes as soon as it is cleaned",
        f"{_COMPACTION}.cleaner",
        "before = now_ms - (DEFAULT_DELETE_RETENTION_MS if keep is None else keep)",
        "before = now_ms - (DEFAULT_DELETE_RETENTION_MS if keep is None else 0)",
    ),
    Mutation(
        "compaction",
        "what was superseded is forgotten and not deleted",
        f"{_COMPACTION}.cleaner",
        "            count += await self._delete(index.visible.ledger, found)\n",
        "            count += len(found)\n",
    ),
    Mutation(
        "compaction",
        "recovery forgets what was deleted",
        f"{_STORAGE}.recovery",
        "ledger.delete(record.ranges, record.removed_entry)",
        "pass",
    ),
    Mutation(
        "compaction",
        "a rewritten segment leaves out an entry of which a message is left",
        f"{_STORAGE}.rewriting",
        "elif deleted.covers(first, last):",
        "elif deleted.overlaps(first, last):",
    ),
    Mutation(
        "compaction",
        "a rewritten segment is not synced",
        f"{_STORAGE}.rewriting",
        "        disk.sync_data(file)\n",
        "",
    ),
    Mutation(
        "transactions",
        "a start forgets what transactions acknowledge",
        f"{_TRANSACTIONS}.coordinator",
        "self.acknowledgements.restore(transaction)",
        "pass",
    ),
    Mutation(
        "transactions",
        "a producer that begins does not fence the one before",
        f"{_TRANSACTIONS}.producers",
        "before._replace(epoch=before.epoch + 1)",
        "before._replace(epoch=before.epoch)",
    ),
    Mutation(
        "transactions",
        "a transaction is decided before the decision is on disk",
        f"{_TRANSACTIONS}.coordinator",
        "            note()\n        await self._store.synced()\n        await self._finish",
        "            note()\n        await self._finish",
    ),
    Mutation(
        "transactions",
        "a start forgets which messages a transaction has",
        f"{_TRANSACTIONS}.restore",
        'if kind == "r":',
        'if kind == "no":',
    ),
    Mutation(
        "transactions",
        "a start leaves what was decided undone",
        f"{_TRANSACTIONS}.coordinator",
        "                await self._finish(transaction)\n        self._watch()",
        "                pass\n        self._watch()",
    ),
    Mutation(
        "transactions",
        "what is aborted is not deleted",
        f"{_TRANSACTIONS}.coordinator",
        "            await self._delete_messages(transaction)\n",
        "",
    ),
    Mutation(
        "transactions",
        "the end of one transaction shows what another has open",
        f"{_TRANSACTIONS}.coordinator",
        "min(open_here.values(), default=None)",
        "None",
    ),
    Mutation(
        "transactions",
        "a commit forgets the positions of groups",
        f"{_TRANSACTIONS}.coordinator",
        "placed = await self._place(transaction)",
        "placed = []",
    ),
    Mutation(
        _NODES,
        "what is certain is counted from an answer",
        f"{_COORDINATION}.link",
        "self._sure_until = sent + self._granted * VALID_SHARE",
        "self._sure_until = self._clock() + self._granted",
    ),
    Mutation(
        _NODES,
        "a lease is certain as long as the session is",
        f"{_COORDINATION}.link",
        "return self._up and self._clock() < self._sure_until",
        "return self._up",
    ),
    Mutation(
        _NODES,
        "a lease that is given back stays in its queue",
        f"{_COORDINATION}.entry",
        "await self._link.ask(lambda client: client.delete_async(path))",
        "await self._link.ask(lambda client: client.sync_async(path))",
    ),
    Mutation(
        _NODES,
        "the second of a queue holds the lease, too",
        f"{_COORDINATION}.entry",
        "        if index == 0:",
        "        if index <= 1:",
    ),
    Mutation(
        _NODES,
        "an entry of which no answer told is forgotten",
        f"{_COORDINATION}.entry",
        "            self._uncertain = True\n            try:",
        "            self._uncertain = False\n            try:",
    ),
    Mutation(
        _NODES,
        "a lost connection leaves the grants",
        f"{_COORDINATION}.coordinator",
        "            if self._listener is not None:\n                self._listener.lost(lease)",
        "            if self._listener is None:\n                self._listener.lost(lease)",
    ),
)


class _MutatedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module with another text in place of one."""

    mutation: Mutation

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compile(mutated(Path(path).read_text(), self.mutation), path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the module of a mutation before the usual finder does."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        loader = _MutatedLoader(fullname, spec.origin)
        loader.mutation = self._mutation
        spec.loader = loader
        return spec


def mutated(source: str, mutation: Mutation) -> str:
    """Return a module's source with the fault in it; raise ValueError if it has no place there."""
    if source.count(mutation.before) != 1:
        raise ValueError(f"{mutation.name}: its text stands {source.count(mutation.before)} times")
    return source.replace(mutation.before, mutation.after)


def plant(name: str) -> None:
    """Have the module of a mutation be imported with it, in this process."""
    (mutation,) = (one for one in MUTATIONS if one.name == name)
    sys.meta_path.insert(0, Finder(mutation))


def found_by(mutation: Mutation) -> str | None:
    """Return the cells of a table about the first seed that finds a mutation, None: none did."""
    command = [sys.executable, "-m", "tests.simulation", "--mutation", mutation.name]
    command += ["--runs", str(MAX_RUNS), "--hours", HOURS, "--stop"]
    command += ["--nodes"] if mutation.area == _NODES else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    for place, line in enumerate(lines):
        if match := FAILED.match(line):
            law = lines[place + 1].strip().split(": ")[1]
            return f"{match['seed']} | {match['hours']} | {law}"
    assert done.returncode == 0, done.stderr
    return None


def main() -> None:
    """Plant all mutations, or those whose names are given; the status says if one was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations")
    parser.add_argument("names", nargs="*", help="the mutations to plant, all of them by default")
    parser.add_argument("--jobs", type=int, default=1, help="how many are looked for at a time")
    arguments = parser.parse_args()
    chosen = [one for one in MUTATIONS if one.name in (arguments.names or {one.name})]
    missed = 0
    _say("| part | planted fault | seed | after hours | what fails |")
    _say("| --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for mutation, cells in zip(chosen, pool.map(found_by, chosen), strict=True):
            missed += cells is None
            _say(f"| {mutation.area} | {mutation.name} | {cells or 'none | | not found'} |")
    _say(f"\n{len(chosen) - missed} of {len(chosen)} found")
    sys.exit(bool(missed))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
