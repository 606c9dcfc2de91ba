"""Single bits that flip in what is at rest: none is served as data.

A folder is taken from a recording, as a kill of the broker or its stop leaves it. A trial flips one
bit in one of its files and opens it. What then is served must be what is served without the flip,
but for entries that are reported as damaged, and for the last commit group of the journal and the
last commit of the metadata: the flip of one of their bits cannot be told from a write that was cut
short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from router.broker.storage import StoreError
from tests.crash_images.contents import Contents, Partition, opened, read
from tests.crash_images.file_system import Crash, FileSystem, Image
from tests.crash_images.making import Recording
from tests.crash_images.recording import Send
from tests.crash_images.trying import write

FILES: Final = {
    "journal": ("journal/", ".log"),
    "segment": ("ledgers/", ".seg"),
    "index": ("ledgers/", ".idx"),
    "metadata": ("metadata.db", "metadata.db"),
    "metadata's log": ("metadata.db-wal", "metadata.db-wal"),
    "registry": ("registry.db", "registry.db"),
    "registry's log": ("registry.db-wal", "registry.db-wal"),
}
"""How the paths of the files of each kind begin and end."""


class Outcome(Enum):
    """What became of a flip; the last two are never as they must be."""

    HARMLESS = "everything is served as before"
    REFUSED = "the folder is refused, with the file and the reason"
    REPORTED = "entries are reported as damaged, all others are served"
    CUT = "the journal, the metadata or the registry ends before its last commit"
    ALTERED = "a name, a property or a position is another one"
    FALSE = "something else is served"


ENDS_EARLIER: Final = {"journal", "metadata's log", "registry's log"}
"""Kinds of files of which the last commit may be lost."""
ALLOWED: Final = {
    "segment": {Outcome.REPORTED},
    "journal": {Outcome.CUT},
    # A segment that the last commit removed is missed by what is left without it.
    "metadata's log": {Outcome.CUT, Outcome.REPORTED},
    "registry's log": {Outcome.CUT},
}
"""Beside REFUSED and HARMLESS."""


@dataclass(frozen=True)
class Flip:
    """One bit of a file."""

    kind: str
    path: str
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit % 8} of byte {self.bit // 8} of {self.path}"


@dataclass(frozen=True)
class Verdict:
    """What a flip led to; `detail` is the refusal, or what differs."""

    flip: Flip
    outcome: Outcome
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.flip}: {self.outcome.value} ({self.detail})"


def killed(recording: Recording, seed: str) -> Image:
    """Return the folder as it is at a place of the recording that the seed chooses."""
    places = [n + 1 for n, event in enumerate(recording.events) if not isinstance(event, Send)]
    chance = Random(f"{seed} flips")
    last = chance.choice(places[len(places) // 3 :])
    system = FileSystem()
    for event in recording.events[:last]:
        system.take(event)
    return system.image(Crash.KILLED, chance)


def stopped(recording: Recording) -> Image:
    """Return the folder as the stop at the end of the recording leaves it."""
    folders = {str(folder) for path in recording.left for folder in Path(path).parents}
    return Image(recording.left, sorted(folders - {"."}))


def plan(image: Image, seed: str, numbers: range) -> list[Flip]:
    """Return the flips of these numbers: each kind of file in turn, any bit of all its bytes."""
    of_kinds = {
        kind: sorted(
            path
            for path, data in image.files.items()
            if data and path.startswith(start) and path.endswith(end)
        )
        for kind, (start, end) in FILES.items()
    }
    kinds = [kind for kind, paths in of_kinds.items() if paths]
    found = []
    for number in numbers:
        chance = Random(f"{seed} flip {number}")
        kind = kinds[number % len(kinds)]
        paths = of_kinds[kind]
        (path,) = chance.choices(paths, [len(image.files[path]) for path in paths])
        found.append(Flip(kind, path, chance.randrange(8 * len(image.files[path]))))
    return found


async def run(image: Image, flips: Sequence[Flip], folder: Path) -> list[Verdict]:
    """Try flips of an image in a folder."""
    write(image, folder)
    without = await _contents(folder)
    verdicts = []
    for flip in flips:
        data = bytearray(image.files[flip.path])
        data[flip.bit // 8] ^= 1 << flip.bit % 8
        write(Image(image.files | {flip.path: bytes(data)}, image.folders), folder)
        verdicts.append(await _judge(flip, folder, without))
    return verdicts


def count(verdicts: Sequence[Verdict]) -> dict[str, Counter[str]]:
    """Return how often each outcome came, by the kind of file."""
    found: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.flip.kind, Counter())[verdict.outcome.name] += 1
    return found


async def _judge(flip: Flip, folder: Path, without: Contents) -> Verdict:
    try:
        found = await _contents(folder)
    except (StoreError, OSError) as error:  # a size that no file has, too
        return Verdict(flip, Outcome.REFUSED, str(error))
    except ValueError as error:
        return Verdict(flip, Outcome.FALSE, str(error))
    if found == without:
        return Verdict(flip, Outcome.HARMLESS)
    outcomes = {
        _of_partition(before, after, ends_earlier=flip.kind in ENDS_EARLIER)
        for name, parts in without.topics.items()
        for before, after in zip(parts, found.topics.get(name, []), strict=False)
        if before != after
    }
    if without.records != found.records or without.topics.keys() != found.topics.keys():
        outcomes.add(Outcome.ALTERED)
    worst = max(outcomes or {Outcome.FALSE}, key=list(Outcome).index)
    if worst is Outcome.ALTERED and flip.kind in ENDS_EARLIER:
        worst = Outcome.CUT
    outcome = worst if worst in ALLOWED.get(flip.kind, ()) else Outcome.FALSE
    return Verdict(flip, outcome, f"{worst.name}: {_first_difference(without, found)}")


def _of_partition(before: Partition, after: Partition, *, ends_earlier: bool) -> Outcome:
    """Return what became of a partition that is not as before.

    `ends_earlier`: deletions may have been lost with the last commit, so messages may be back.
    """
    numbers = {message.number for message in before.messages} if ends_earlier else set()
    more = [message for message in after.messages if message not in before.messages]
    if more and (not ends_earlier or any(message.number in numbers for message in more)):
        return Outcome.FALSE
    missing = [message for message in before.messages if message not in after.messages]
    covered = [m for m in missing if any(a <= m.entry <= b for a, b in after.damage)]
    if missing == covered and after == _as_before(before, after):
        return Outcome.REPORTED
    if missing and missing == covered:
        return Outcome.ALTERED
    if not missing and after.damage == before.damage:
        return Outcome.ALTERED
    is_end = missing == before.messages[len(before.messages) - len(missing) :]
    return Outcome.CUT if is_end and not after.damage else Outcome.FALSE


def _first_difference(without: Contents, found: Contents) -> str:
    for name, parts in without.topics.items():
        if parts != found.topics.get(name):
            return f"{name} is {found.topics.get(name)}, was {parts}"
    return f"{found.records}, was {without.records}"


def _as_before(before: Partition, after: Partition) -> Partition:
    """Return a partition as before, without the messages that are damaged."""
    entries = {message.entry for message in after.messages}
    groups = {name: group.without(after.damage) for name, group in before.groups.items()}
    messages = [message for message in before.messages if message.entry in entries]
    return Partition(
        before.ledger,
        before.next_entry,
        before.next_number,
        messages,
        groups,
        before.producers,
        after.damage,
        before.settings,
    )


async def _contents(folder: Path) -> Contents:
    async with opened(folder, close=False) as (store, registry):
        return await read(store, registry)
