"""How far a run is: fed by Spark's events, shown on the terminal, to Prometheus and in a file.

Spark tells each query's progress as JSON. What it comes down to is kept here in small values, of
the last batch and in sum, so that a terminal's line, a scrape and `router pipeline status` say the
same. The file is written whole and renamed: a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from router.model import NOT_PARTITIONED
from router.pipelines.declaration import DEAD_LETTERS
from router.pipelines.formats import COUNTS
from router.services.pipelines import STATUS, read_status, run_state

# More partitions are summed up: a status is read by people.
MAX_LAGS: Final = 1_000
MAX_LAG_TIMES: Final = 1_000
"""Times of a query that are kept to tell how old its lag is; more of them are thinned out."""


@dataclass(slots=True)
class SinkProgress:
    """One sink: its last batch and what came to it since the run began; `lag` in messages.

    `lag_seconds` is for how long the oldest message that is not read has been known to be there.
    Before the first batch has ended, and where the source does not count its messages, `lag` is
    empty and `lag_seconds` None: what is still to be read is not known.

    A batch of a time limit's own, which has no rows, counts as one. `bad` counts what the query
    read and did not decode; each sink reads all of the source. `worst_rows` and `worst_bad` are of
    the batch with the largest share of bad ones: the next may be over before anybody looks.
    """

    batch: int = -1
    batches: int = 0
    rows: int = 0
    bad: int = 0
    batch_rows: int = 0
    batch_bad: int = 0
    worst_rows: int = 0
    worst_bad: int = 0
    rows_per_second: float = 0.0
    batch_ms: int = 0
    lag: dict[str, int] = field(default_factory=dict)
    lag_seconds: float | None = None
    lost: int = 0
    watermark: str = ""


class LagHistory:
    """When so many messages were stored, which tells since when those not read have been there."""

    def __init__(self) -> None:
        self._stored: list[tuple[float, int]] = []

    def seconds(self, now: float, stored: int, read: int) -> float:
        """Return for how long the first message behind `read` has been known; 0: all are read.

        `stored` and `read` count messages since the topics began, at the time `now` in seconds.
        """
        if self._stored and stored < self._stored[-1][1]:
            # Other topics than before.
            self._stored = []
        if not self._stored or stored > self._stored[-1][1]:
            self._stored.append((now, stored))
        self._stored = [one for one in self._stored if one[1] > read] or self._stored[-1:]
        if len(self._stored) > MAX_LAG_TIMES:
            self._stored = self._stored[::2]
        since, there = self._stored[0]
        return now - since if there > read else 0.0


class PipelineProgress:
    """The sinks of one run by name; fed and read by any thread.

    `names` are those that are known from the start, so that what is shown of them begins with 0.
    `short` returns what rows show as the topic of a full name.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        names: Iterable[str] = (),
        short: Callable[[str], str] = str,
    ) -> None:
        self._short = short
        self._clock = clock
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._sinks = {name: SinkProgress() for name in names}
        self._histories: dict[str, LagHistory] = {}
        self._ended: set[str] = set()
        self.since = clock()

    def add(self, event: Mapping[str, Any]) -> tuple[str, SinkProgress]:
        """Take one progress event of Spark's, as JSON; return the sink and how it stands."""
        name = str(event.get("name") or event.get("id") or "").rpartition("/")[2]
        with self._lock:
            sink = self._sinks.setdefault(name, SinkProgress())
            batch = int(event.get("batchId", -1))
            # An idle query tells its last batch again, without rows.
            sink.batches += batch != sink.batch
            sink.batch = batch
            _take(sink, event, self._short)
            stored = sum(map(_stored, event.get("sources") or ()))
            history = self._histories.setdefault(name, LagHistory())
            read = stored - sum(sink.lag.values())
            if sink.lag:
                sink.lag_seconds = round(history.seconds(self._clock(), stored, read), 3)
            return name, sink

    def end(self, run: str) -> None:
        """Record that a query has ended: it will report no more."""
        with self._news:
            self._ended.add(run)
            self._news.notify_all()

    def wait_for_end(self, runs: Collection[str], timeout: float) -> bool:
        """Wait until all was heard of these runs; return False when that takes too long."""
        with self._news:
            return self._news.wait_for(lambda: self._ended.issuperset(runs), timeout)

    def sinks(self) -> dict[str, dict[str, Any]]:
        """Return how all sinks stand."""
        with self._lock:
            return {name: asdict(sink) for name, sink in sorted(self._sinks.items())}

    def batches(self, name: str) -> int:
        """Return how many batches of a sink have ended."""
        with self._lock:
            return self._sinks[name].batches if name in self._sinks else 0

    def dead_letters(self) -> int:
        """Return how many bad records were met; the sink of dead letters knows best."""
        sinks = self.sinks()
        if DEAD_LETTERS in sinks:
            return int(sinks[DEAD_LETTERS]["bad"])
        return max((int(sink["bad"]) for sink in sinks.values()), default=0)

    def line(self) -> str:
        """Return one line for a terminal."""
        sinks = self.sinks()
        shown = [one for name, one in sinks.items() if name != DEAD_LETTERS and one["batches"]]
        if not shown:
            return f"waiting for the first batch, {self._clock() - self.since:.0f} s"
        parts = [
            f"{sum(one['rows_per_second'] for one in shown):,.0f} rows/s",
            f"{max(one['rows'] for one in shown):,} rows",
            f"batch {max(one['batch_ms'] for one in shown):,} ms",
            _lag_text(max((one["lag"] for one in shown), key=lambda lag: sum(lag.values()))),
            f"{self.dead_letters():,} dead letters",
        ]
        return "  ".join(part for part in parts if part)


def lags(source: Mapping[str, Any], short: Callable[[str], str] = str) -> dict[str, int]:
    """Return the messages behind a batch's end by `topic/partition`, if the source counts them.

    Both are named as in rows: `short` is of full names, and a topic without partitions has one.
    """
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    found = {}
    for topic, partitions in latest.items():
        name = short(topic) if "://" in topic else topic
        for partition, last in partitions.items():
            read = int(end.get(topic, {}).get(partition, 0))
            shown = "0" if partition == str(NOT_PARTITIONED) else partition
            found[f"{name}/{shown}"] = max(0, int(last) - read)
    return _bounded(found)


def _stored(source: Mapping[str, Any]) -> int:
    """Return how many messages the partitions of a source have had, where it counts them."""
    latest = _offsets(source.get("latestOffset"))
    return sum(int(count) for partitions in latest.values() for count in partitions.values())


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Write the status of a run beside its checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".{STATUS}.{os.getpid()}"
    scratch.write_text(json.dumps(status, indent=1, sort_keys=True) + "\n", "utf-8")
    scratch.replace(folder / STATUS)


def _take(sink: SinkProgress, event: Mapping[str, Any], short: Callable[[str], str]) -> None:
    metrics = event.get("observedMetrics") or {}
    counts = [one for name, one in metrics.items() if name.startswith(COUNTS) and one]
    if counts:
        sink.batch_rows = sum(int(one.get("rows") or 0) for one in counts)
    else:
        sink.batch_rows = int(event.get("numInputRows") or 0)
    sink.batch_bad = sum(int(one.get("bad") or 0) for one in counts)
    if sink.batch_bad * sink.worst_rows >= sink.worst_bad * sink.batch_rows and sink.batch_rows:
        sink.worst_rows, sink.worst_bad = sink.batch_rows, sink.batch_bad
    sink.rows += sink.batch_rows
    sink.bad += sink.batch_bad
    sink.batch_ms = int((event.get("durationMs") or {}).get("triggerExecution", 0))
    sink.rows_per_second = round(sink.batch_rows * 1000 / max(1, sink.batch_ms), 1)
    sink.watermark = str((event.get("eventTime") or {}).get("watermark", ""))
    sources = event.get("sources") or ()
    found: dict[str, int] = {}
    for source in sources:
        found |= lags(source, short)
    sink.lag = _bounded(found) or sink.lag
    lost = sum(int(_json(one.get("endOffset")).get("lost", 0) or 0) for one in sources)
    sink.lost = max(sink.lost, lost)


def _offsets(value: Any) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition, of either source; nothing for what is neither."""
    offsets = _json(value)
    offsets = offsets["index"] if isinstance(offsets.get("index"), dict) else offsets
    return {
        topic: {p: n for p, n in parts.items() if isinstance(n, int)}
        for topic, parts in offsets.items()
        if isinstance(parts, dict)
    }


def _json(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _bounded(found: dict[str, int]) -> dict[str, int]:
    if len(found) <= MAX_LAGS:
        return found
    most = sorted(found, key=lambda name: -found[name])
    kept = {name: found[name] for name in most[:MAX_LAGS]}
    return kept | {"others": sum(found[name] for name in most[MAX_LAGS:])}


def _lag_text(lag: Mapping[str, int]) -> str:
    """Return the lag of the partitions that are most behind, and of all."""
    if not lag:
        return ""
    worst = sorted(lag.items(), key=lambda one: -one[1])[:3]
    names = ", ".join(f"{name} {count:,}" for name, count in worst if count)
    total = f"lag {sum(lag.values()):,}"
    return f"{total} ({names})" if names else total


def status_lines(name: str, folder: Path) -> tuple[list[str], bool]:
    """Return lines on a pipeline whose state is in `folder`, and whether all is well."""
    found = read_status(folder)
    if found is None:
        return [f"{name}: never ran with the checkpoint {folder}"], False
    state = run_state(found, folder)
    lines = [
        f"{name}: {state}, process {found.get('pid')} on {found.get('host')},"
        f" since {found.get('started')}, updated at {found.get('updated')}"
    ]
    if found.get("error"):
        lines.append(f"  {found['error']}")
    sinks = found.get("sinks") or {}
    width = max(map(len, sinks), default=0)
    lines += [f"  {sink:<{width}}  {_sink(one)}" for sink, one in sinks.items()]
    if found.get("dead_letters"):
        lines.append(f"  bad records: {found['dead_letters']:,}")
    return lines, state not in {"failed", "killed"}


def _sink(sink: dict[str, Any]) -> str:
    if not sink.get("batches"):
        return "no batch yet"
    lag = sink.get("lag") or {}
    lagging = sorted(((name, n) for name, n in lag.items() if n), key=lambda one: -one[1])[:5]
    parts = [
        f"batch {sink.get('batch')}",
        f"{sink.get('rows', 0):,} rows",
        f"{sink.get('rows_per_second', 0):,.0f} rows/s",
        f"{sink.get('batch_ms', 0):,} ms",
        f"lag {sum(lag.values()):,}, {sink.get('lag_seconds') or 0:.0f} s"
        if lag
        else "lag unknown",
        *(f"{name} {count:,}" for name, count in lagging),
    ]
    if sink.get("lost"):
        parts.append(f"lost {sink['lost']:,}")
    return "  ".join(parts)
