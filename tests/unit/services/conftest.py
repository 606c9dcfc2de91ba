"""Subscribers for the tests of polls and groups, ended behind each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.services.polling import Bench


@pytest.fixture
def benches() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(partitions: int = 0, *, limit: int = 0, create: bool = False) -> Bench:
        made.append(Bench(partitions, limit=limit, create=create))
        return made[-1]

    yield make
    for bench in made:
        bench.subscriber.stop()
        bench.pool.shutdown()
        bench.node.close()
        bench.backend.close()


@pytest.fixture
def bench(benches: Callable[..., Bench]) -> Bench:
    return benches()
