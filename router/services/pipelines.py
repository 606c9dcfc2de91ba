"""The declared pipelines and how their runs stand, as files and leases tell; nothing runs here.

A run keeps its status in a file beside its checkpoint, on its own machine, and its lease at the
node's broker, which all nodes share. So what is told of a run elsewhere is which node it is at.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.errors import BackendTimeoutError, BackendUnavailableError
from router.model import Subscription, TopicName
from router.node import Node

LEASES: Final = TopicName("router", "pipelines", "runs")
"""The topic of which each pipeline's lease is a subscription; no store has it."""
FOLDER: Final = "pipelines"
"""Below the data folder: the states of pipelines that name no checkpoint."""
STATUS: Final = "status.json"
LOCK: Final = "run.lock"
ALIVE: Final = ("starting", "running")
DEAD_LETTERS: Final = "dead_letters"
"""The key of a declaration that names the topic for bad records."""
MAX_LISTED: Final = 100
MAX_FILE_BYTES: Final = 1024 * 1024
_LARGEST_NOTE: Final = 4096


@dataclass(frozen=True, slots=True)
class DeclaredPipeline:
    """A pipeline that is declared, or that ran here without a declaration.

    `problem` says why the declaration cannot be read, "" if it can; `state_folder` has the status.
    """

    name: str
    description: str
    problem: str
    state_folder: Path


class Pipelines:
    """Looks at pipelines; calls block, and may be made from many threads or greenlets."""

    def __init__(self, declarations: Path, data: Path, node: Node, timeout: float) -> None:
        self._declarations = declarations
        self._data = data
        self._node = node
        self._timeout = timeout
        self._named: dict[Path, tuple[tuple[int, ...], str]] = {}

    def listed(self) -> list[dict[str, Any]]:
        """Return the first MAX_LISTED pipelines by name, each with its state."""
        found = {one.name: one for one in self._undeclared()}
        found |= {one.name: one for one in self._declared()}
        return [self._state_of(found[name]) for name in sorted(found)[:MAX_LISTED]]

    def _declared(self) -> Iterator[DeclaredPipeline]:
        for file in sorted(self._declarations.glob("*.toml"))[: MAX_LISTED + 1]:
            try:
                document = _parsed(_read(file))
            except (OSError, ValueError) as error:
                problem = f"{file.name} cannot be read: {error}"
                yield DeclaredPipeline(file.stem, "", problem, self._own(file.stem))
                continue
            checkpoint = document.get("checkpoint", "")
            folder = str(checkpoint).removeprefix("file://")
            local = Path(folder) if folder and "://" not in folder else self._own(file.stem)
            yield DeclaredPipeline(file.stem, str(document.get("description", "")), "", local)

    def _undeclared(self) -> Iterator[DeclaredPipeline]:
        """Yield what ran by its name alone, such as a replay, and shipped pipelines."""
        for file in sorted((self._data / FOLDER).glob(f"*/{STATUS}"))[: MAX_LISTED + 1]:
            yield DeclaredPipeline(file.parent.name, "", "", file.parent)

    def dead_letter_topics(self) -> list[str]:
        """Return the topics for bad records that the first MAX_LISTED declarations name, sorted."""
        # Each page of a message asks, and 100 declarations take 0.4 s to parse.
        named = dict[Path, tuple[tuple[int, ...], str]]()
        for file in sorted(self._declarations.glob("*.toml"))[:MAX_LISTED]:
            with suppress(OSError):
                found = file.stat()
                version = found.st_ino, found.st_size, found.st_mtime_ns
                known = self._named.get(file)
                if known is None or known[0] != version:
                    known = version, _dead_letters_of(file)
                named[file] = known
        self._named = named
        return sorted({name for _, name in named.values() if name})

    def _own(self, name: str) -> Path:
        return self._data / FOLDER / name

    def _state_of(self, pipeline: DeclaredPipeline) -> dict[str, Any]:
        status = read_status(pipeline.state_folder)
        state = "never ran" if status is None else run_state(status, pipeline.state_folder)
        status = status or {}
        sinks = status.get("sinks") if isinstance(status.get("sinks"), dict) else {}
        rows = [_sink(name, one) for name, one in (sinks or {}).items() if isinstance(one, dict)]
        node = self._elsewhere(pipeline.name) if state not in ALIVE else None
        return {
            "name": _text(pipeline.name),
            "description": _text(pipeline.description),
            "state": _text(state) if node is None else "running",
            "node": node or _text(status.get("host", "")),
            "started": _text(status.get("started", "")),
            "updated": _text(status.get("updated", "")),
            "rows_per_second": sum(row["rows_per_second"] for row in rows),
            "lag": _largest_lag(row["lag"] for row in rows),
            "lag_seconds": _largest_lag(row["lag_seconds"] for row in rows),
            "bad_records": _number(status.get("dead_letters")),
            "error": _text(pipeline.problem or status.get("error", "")),
            "sinks": rows,
        }

    def _elsewhere(self, name: str) -> str | None:
        """Return the node that has a pipeline's lease, None: none that is known."""
        try:
            found = self._node.members(Subscription(LEASES, name), self._timeout)
        except (BackendUnavailableError, BackendTimeoutError):
            return None
        nodes = [one.node or "this node" for one in found.leases if one.node is not None]
        return nodes[0] if nodes else None


def read_status(folder: Path) -> dict[str, Any] | None:
    """Return what the last run wrote, None: there was none."""
    try:
        found = json.loads(_read(folder / STATUS))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def run_state(status: dict[str, Any], folder: Path) -> str:
    """Return what a run says of itself, unless it cannot say any more that it was killed."""
    state = str(status.get("state", "unknown"))
    here = status.get("host") == socket.gethostname()
    if state in ALIVE and here and holder(folder) is None and not _lives(status.get("pid")):
        return "killed"
    return state


def holder(folder: Path) -> str | None:
    """Return who holds the lock of a run on a folder, None: it is free."""
    try:
        with (folder / LOCK).open("r", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                note = json.loads(file.read(_LARGEST_NOTE) or "{}")
                return f"process {note.get('pid', '?')} on {note.get('host', '?')}"
    except (OSError, ValueError):
        return None
    return None


def _lives(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sink(name: str, found: dict[str, Any]) -> dict[str, Any]:
    lag = found.get("lag")
    lags = [_number(one) for one in lag.values()] if isinstance(lag, dict) else []
    return {
        "name": _text(name),
        "batch": _number(found.get("batch")),
        "rows": _number(found.get("rows")),
        "rows_per_second": round(_number(found.get("rows_per_second")), 1),
        "batch_ms": _number(found.get("batch_ms")),
        "lag": sum(lags) if lags else None,
        "lag_seconds": round(_number(found.get("lag_seconds")), 1) if lags else None,
        "lost": _number(found.get("lost")),
    }


def _largest_lag(lags: Iterable[float | None]) -> float | None:
    """Return the largest lag, None: not all of them are known, or there is none."""
    known = list(lags)
    return None if None in known else max((lag for lag in known if lag is not None), default=None)


def _text(value: object) -> str:
    """Return a text without what is no character: bytes of a file's name, or of a foreign file."""
    return str(value).encode(errors="replace").decode()


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


def _dead_letters_of(file: Path) -> str:
    """Return the topic for bad records that a declaration names, "": none; raise OSError."""
    with suppress(ValueError):
        text = _read(file)
        name = _parsed(text).get(DEAD_LETTERS) if DEAD_LETTERS in text else None
        return name if isinstance(name, str) else ""
    return ""


def _parsed(text: str) -> dict[str, Any]:
    """Return a declaration; raise ValueError for one that cannot be read."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _read(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
    return data.decode("utf-8")
