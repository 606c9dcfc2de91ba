"""What a broker holds when its clients are gone: nothing they began, and the files it writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sized
from typing import Any, Final

from router.broker.running import RunningBroker
from router.broker.storage.segments import file_of
from tests.simulation.disk import SimulatedDisk

GONE_SECONDS: Final = 240.0
"""After so long without clients sessions, transactions and half-open connections have ended."""
WORK_SECONDS: Final = 60.0
"""What the broker begins by itself ends within so long."""
LASTING: Final = frozenset(
    {
        "BrokerBlacklist._read",
        "BrokerSchemas.run_sweeps",
        "Cleaner.run",
        "Event.wait",
        "Maintenance.run",
        "Node._run",
        "ProtocolListener._check_liveness",
        "Store._watch_space",
        "Streams._maintain",
    }
)
"""The coroutines of tasks that last as long as a broker."""


def tasks_of(loop: Any) -> set[asyncio.Task[Any]]:
    """Return the tasks of a broker's loop that do not last as long as the broker."""
    return {task for task in asyncio.all_tasks(loop) if _name(task) not in LASTING}


def kept(
    broker: RunningBroker, disk: SimulatedDisk, tasks: set[asyncio.Task[Any]]
) -> dict[str, str]:
    """Return what is held without a client or topic that explains it, by its name.

    `tasks`: those that do not end.
    """
    found = {name: str(len(held)) for name, held in _of_clients(broker).items() if len(held)}
    if left := sorted(map(_name, tasks)):
        found["tasks"] = ", ".join(left)
    for name, (count, limit) in _of_topics(broker).items():
        if count > limit:
            found[name] = f"{count}, which {limit} explain"
    if files := _unexplained(broker, disk):
        found["files"] = ", ".join(files)
    return found


def _of_clients(broker: RunningBroker) -> dict[str, Sized]:
    """Return what clients make, by its name: none of it outlives them."""
    context, transport, topics = broker._context, broker._transport, _topics(broker)
    polls: Any = context.rpc.polls
    leases: Any = context.leases
    producers: Any = context.transactions
    nats: Any = context.nats
    partitions = list(topics._partitions.values())
    dispatchers = [one for partition in partitions for one in partition.dispatchers]
    return {
        "connections": transport.connections,
        "unauthenticated": transport.unauthenticated,
        "frames": transport.memory_budget._held,
        "frames that wait": transport.memory_budget._waiting,
        "polls": polls._polls,
        "tasks of polls": polls._tasks,
        "unprepared polls": polls._unprepared,
        "resting polls": polls._resting,
        "polls of leases": leases._polls,
        "updates of leases": leases._updates,
        "recalls": leases._recalls._ends,
        "transactions": producers.transactions._open,
        "topics that change": topics._busy,
        "clients of NATS": nats.clients,
        "producers": [one for partition in partitions for one in partition.producers],
        "consumers": [one for dispatcher in dispatchers for one in dispatcher.consumers],
    }


def _of_topics(broker: RunningBroker) -> dict[str, tuple[int, int]]:
    """Return how many there are of what topics and groups need, and how many may be."""
    topics, polls, leases = _topics(broker), broker._context.rpc.polls, broker._context.leases
    catalog, writer = topics.store._catalog, topics.store._context.writer
    of_polls: Any = polls
    of_leases: Any = leases
    ledgers = len(catalog.ids)
    groups = sum(len(catalog.subscriptions(number)) for number in catalog.ids)
    return {
        "partitions": (len(topics._partitions), ledgers),
        "folders of segments": (len(writer._prepared), ledgers),
        "unsaved cursors": (len(catalog.unsaved), groups),
        "groups of polls": (len(of_polls._groups), groups),
        "groups of leases": (len(of_leases._groups), groups),
    }


def _unexplained(broker: RunningBroker, disk: SimulatedDisk) -> list[str]:
    """Return the open files that a broker does not keep open by design.

    It keeps the journal's file; the folder of ledgers, to sync all with; and of each ledger that it
    writes the last segment and its index.
    """
    store = _topics(broker).store
    writer, journal = store._context.writer, store._context.files
    paths = {id(content): path for path, content in disk.names.items() if content is not None}
    explained = Counter({journal.path(journal.number): 1, None: int(writer._root >= 0)})
    for number in store._catalog.ids:
        for segment in store.ledger(number).segments[-1:]:
            path = file_of(writer._ledgers, number, segment)
            explained.update((path, path.with_suffix(".idx")))
    opened = Counter(paths.get(id(handle.content)) for handle in disk.handles.values())
    return sorted(map(str, (opened - explained).elements()))


def _topics(broker: RunningBroker) -> Any:
    return broker._context.topics


def _name(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    return str(coroutine.__qualname__)
