"""Work of very many parts on the event loop: done in steps, between which others are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

PARTS_IN_STEP: Final = 250
T = TypeVar("T")


async def in_steps(parts: Iterable[T]) -> AsyncIterator[T]:
    """Yield parts, PARTS_IN_STEP in each step of the event loop."""
    for count, part in enumerate(parts, 1):
        yield part
        if count % PARTS_IN_STEP == 0:
            await asyncio.sleep(0)


async def steps_of(parts: Iterable[T]) -> AsyncIterator[list[T]]:
    """Yield parts as lists of PARTS_IN_STEP, each in a step of the event loop."""
    left = iter(parts)
    while step := list(islice(left, PARTS_IN_STEP)):
        yield step
        await asyncio.sleep(0)


async def all_in_steps(parts: Iterable[T], test: Callable[[T], bool]) -> bool:
    """Return whether all parts pass a test."""
    left = iter(parts)
    while step := list(islice(left, PARTS_IN_STEP)):
        if not all(map(test, step)):
            return False
        await asyncio.sleep(0)
    return True


async def side_by_side(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of work that waits for the disk, PARTS_IN_STEP at once, which share syncs.

    Raises the first failure of a step once all of the step has ended; no other step begins then.
    """
    left, results = iter(work), []
    while step := list(islice(left, PARTS_IN_STEP)):
        for result in await asyncio.gather(*step, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results
