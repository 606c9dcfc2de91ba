"""Tries images: each is written to a folder, opened, compared with what clients know, and again.

An image has a number; the seed of the run and the number choose the place in the recording, what
the crash leaves, and whether the first process that opens it is stopped or killed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from router.broker.storage import StoreError
from router.broker.storage.files import check
from tests.crash_images.contents import Contents, opened, read
from tests.crash_images.file_system import Crash, FileSystem, Image
from tests.crash_images.making import Recording
from tests.crash_images.promises import breaches
from tests.crash_images.recording import Send

REOPENED_SHARE: Final = 0.25
"""Of the images: these are opened a second time."""
MAX_KNOWN: Final = 500
"""Images whose contents are remembered: two of five are like one of the last few hundred."""


@dataclass(frozen=True)
class Trial:
    """One image: a place in the recording and what the crash left there."""

    number: int
    place: int
    crash: Crash
    seed: str

    def __str__(self) -> str:
        return (
            f"image {self.number} of seed {self.seed}: after event {self.place}, {self.crash.name}"
        )


@dataclass(frozen=True)
class Failure:
    """An image that broke a promise, and how."""

    trial: Trial
    breaches: list[str]

    def __str__(self) -> str:
        return f"{self.trial}: " + "; ".join(self.breaches)


def plan(recording: Recording, seed: str, numbers: range) -> list[Trial]:
    """Return the trials of these numbers, in the order of their places.

    Each place is tried with each kind of crash before one is again.
    """
    places = [n + 1 for n, event in enumerate(recording.events) if not isinstance(event, Send)]
    kinds = list(Crash)
    pairs = [(place, kind) for place in places for kind in kinds]
    Random(seed).shuffle(pairs)
    trials = [Trial(n, *pairs[n % len(pairs)], seed) for n in numbers]
    return sorted(trials, key=lambda trial: (trial.place, trial.number))


def images(recording: Recording, trials: list[Trial]) -> Iterator[tuple[Trial, Image]]:
    """Yield the images of trials, which are in the order of their places."""
    system, events = FileSystem(), iter(recording.events)
    place = 0
    for trial in trials:
        while place < trial.place:
            system.take(next(events))
            place += 1
        yield trial, system.image(trial.crash, Random(f"{trial.seed} {trial.number}"))


def write(image: Image, folder: Path) -> None:
    """Write an image to a folder, in place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in image.folders:
        (folder / path).mkdir()
    for path, data in image.files.items():
        (folder / path).write_bytes(data)


async def run(
    recording: Recording, trials: list[Trial], folder: Path, most: int | None = None
) -> list[Failure]:
    """Try images in a folder; return the failures, after so many of them (None: all trials)."""
    failures: list[Failure] = []
    known: dict[bytes, Contents] = {}
    for trial, image in images(recording, trials):
        if found := await attempt(recording, trial, image, folder, known):
            failures.append(Failure(trial, found))
            if len(failures) == most:
                break
    return failures


async def attempt(
    recording: Recording, trial: Trial, image: Image, folder: Path, known: dict[bytes, Contents]
) -> list[str]:
    """Open an image in a folder and return what is wrong with it.

    `known` has the contents of sound images: the same one is not opened again, but held to what
    clients knew at its own place.
    """
    digest = image.digest()
    if (contents := known.get(digest)) is not None:
        return breaches(recording.facts, trial.place, contents)
    write(image, folder)
    chance = Random(f"{trial.seed} {trial.number} open")
    try:
        first = await _contents(folder, close=chance.random() < 0.5)
        found = breaches(recording.facts, trial.place, first)
        if not found and chance.random() < REOPENED_SHARE:
            found = [f"after the first opening: {sentence}" for sentence in _serious(folder)]
            if await _contents(folder, close=True) != first:
                found.append("the second opening finds something else")
            found += [f"after the second opening: {sentence}" for sentence in _serious(folder)]
    except (StoreError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]
    if not found:
        if len(known) == MAX_KNOWN:
            known.clear()
        known[digest] = first
    return found


async def _contents(folder: Path, *, close: bool) -> Contents:
    async with opened(folder, close=close) as (store, registry):
        return await read(store, registry)


def _serious(folder: Path) -> list[str]:
    return [finding.sentence for finding in check(folder) if finding.serious]
