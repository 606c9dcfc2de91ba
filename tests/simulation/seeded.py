"""Time, random numbers and hashes of this process, all decided by a seed.

`install` must run before any module of the router is imported: some keep a clock from their import.
"""

from __future__ import annotations

import ctypes
import os
import random
import secrets
import sqlite3
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final

EPOCH: Final = 1_700_000_000.0
HASH_SEED: Final = "0"
ADDR_NO_RANDOMIZE: Final = 0x0040000
"""Of personality(2)."""


class Clock:
    """The one clock: `now` is what `time.monotonic` returns, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall_offset = EPOCH - 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)

    def time(self) -> float:
        return self.now + self.wall_offset

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


CLOCK: Final = Clock()
_RANDOM: Final = Random(0)
_connections: list[tuple[str, sqlite3.Connection]] = []


def exec_with_fixed_hashes() -> None:
    """Begin this process again unless the hashes of text are the same in all processes.

    Those of other objects follow from their addresses, which are the same then, too.
    """
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
        environ = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        os.execve(sys.executable, sys.orig_argv, environ)


def install() -> None:
    """Replace the clocks and the sources of randomness of this process."""
    replaced: dict[Any, dict[str, Any]] = {
        time: {
            "monotonic": CLOCK.monotonic,
            "monotonic_ns": CLOCK.monotonic_ns,
            "perf_counter": CLOCK.monotonic,
            "perf_counter_ns": CLOCK.monotonic_ns,
            "time": CLOCK.time,
            "time_ns": CLOCK.time_ns,
            "sleep": CLOCK.sleep,
        },
        os: {"urandom": _RANDOM.randbytes},
        secrets: {
            "randbits": _RANDOM.getrandbits,
            "randbelow": _RANDOM.randrange,
            "choice": _RANDOM.choice,
            "token_bytes": _RANDOM.randbytes,
            "token_hex": lambda size: _RANDOM.randbytes(size).hex(),
        },
        sqlite3: {"connect": _connect},
    }
    for module, names in replaced.items():
        for name, value in names.items():
            setattr(module, name, value)


def reseed(seed: str) -> None:
    """Begin the random numbers of the process with a seed."""
    random.seed(seed)
    _RANDOM.seed(seed)


_real_connect: Final = sqlite3.connect


def _connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = _real_connect(*args, **kwargs)
    connection.create_function("random", 0, lambda: _RANDOM.getrandbits(63))
    _connections.append((str(args[0]), connection))
    return connection


def close_databases(folder: Path | None = None) -> None:
    """Close every database that is open in a folder: the process that had it is dead."""
    prefix = "" if folder is None else f"{folder}/"
    for path, connection in list(_connections):
        if path.startswith(prefix):
            connection.close()
            _connections.remove((path, connection))
