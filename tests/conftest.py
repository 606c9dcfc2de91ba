"""Fixtures for every kind of test: a folder, a port, a clock, and the product's real processes."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from router.process.collecting import keep_loaded, settle
from tests.kafka_sockets import close_lost_sockets
from tests.ports import free_port as find_free_port
from tests.processes import BrokerProcess, ManualClock
from tests.servers.fixtures import (
    apache_pulsar,
    kafka,
    nats_server,
    new_kafka,
    new_pulsar,
    new_zookeeper,
    zookeeper,
)
from tests.servers.java import FAST_START
from tests.sharing import share
from tests.system.stack import Stack

# A run in the background begins with interrupts ignored, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What Spark's own scripts give to each JVM that they start: users' commands run for seconds here.
os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_LAUNCHER_OPTS"] = " ".join(FAST_START)

MAX_ID_CHARACTERS = 100
# Fixtures that are written elsewhere, for every test to name.
__all__ = [
    "apache_pulsar",
    "kafka",
    "nats_server",
    "new_kafka",
    "new_pulsar",
    "new_zookeeper",
    "zookeeper",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Form the groups of a parallel run, before pytest-xdist reads them."""
    share(items)


def pytest_collection_finish() -> None:
    """Collect garbage as the router's processes do: what all tests share is looked at once."""
    close_lost_sockets()
    keep_loaded()
    settle()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its length: workers and reports carry the names of all tests."""
    if isinstance(val, str | bytes) and len(val) > MAX_ID_CHARACTERS:
        return f"{argname}-of-{len(val)}"
    return None


set_hypothesis_home_dir(".cache/hypothesis")
# Two cores that other things share: how long one example takes says nothing about it.
hypothesis.settings.register_profile("router", deadline=None)
hypothesis.settings.load_profile("router")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of the test's own."""
    return tmp_path


@pytest.fixture
def free_port() -> int:
    """A port of loopback that nobody listens on."""
    return find_free_port()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Stack]:
    """`python -m router serve` on an empty folder, ready."""
    stack = Stack(tmp_path, "--workers", "2")
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """`python -m router broker` on an empty folder, answering on its socket and on a port."""
    process = BrokerProcess(tmp_path / "data", find_free_port())
    process.start()
    yield process
    process.stop()
