"""Finds what the index of a stream counts and no reader may have yet, behind open transactions.

Theory of operation. What NATS clients publish is in the index as soon as it is appended, since the
next publish is checked against it. While a transaction is open on the topic, readers get none of it
that stands behind the first entry of the transaction. It is read each time a state is requested. An
index of what readers may have, beside that of all, would cost memory and time with each publish.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from router.broker.nats.streams.log.indexing import Indexer
from router.broker.nats.streams.log.messages import StoredMessage

MAX_WITHHELD_ENTRIES: Final = 10_000
"""Entries that are looked at for one state."""
MAX_READS: Final = 64
"""Of the disk for one state, 256 KiB each."""
ENTRIES_PER_YIELD: Final = 100


@dataclass(slots=True)
class WithheldMessages:
    """The bytes that messages count for in the index, and how many of each subject there are."""

    bytes: int = 0
    subjects: Counter[str] = field(default_factory=Counter)

    def add(self, message: StoredMessage) -> None:
        """Count a message."""
        self.bytes += message.size
        self.subjects[message.subject] += 1

    def subtract_from(self, counts: dict[str, int]) -> None:
        """Take these messages out of the counts of subjects, and subjects that have no others."""
        for subject in self.subjects.keys() & counts.keys():
            counts[subject] -= self.subjects[subject]
            if counts[subject] <= 0:
                del counts[subject]


async def read_withheld(indexer: Indexer) -> WithheldMessages:
    """Return what is withheld now; nothing is read if no transaction is open.

    Behind MAX_WITHHELD_ENTRIES entries, or MAX_READS reads, messages count as readable ones. What
    comes while this reads is not in it. Raises OSError.
    """
    found = WithheldMessages()
    if not indexer.withholds:
        return found
    entries, on_disk = indexer.ahead()[:MAX_WITHHELD_ENTRIES], []
    for number, entry in enumerate(entries, 1):
        if (messages := indexer.cached(entry)) is None:
            on_disk.append(entry)
        for message in messages or ():
            found.add(message)
        if number % ENTRIES_PER_YIELD == 0:
            await asyncio.sleep(0)
    async for message in indexer.stored(on_disk, MAX_READS):
        found.add(message)
    return found
