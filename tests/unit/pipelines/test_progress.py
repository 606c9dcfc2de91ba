"""Progress of a run: from Spark's events to a line, a file and metrics."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import SettingError
from router.pipelines.lease import Lock
from router.pipelines.metrics import serve
from router.pipelines.progress import (
    MAX_LAG_TIMES,
    MAX_LAGS,
    LagHistory,
    PipelineProgress,
    lags,
    status_lines,
    write_status,
)
from router.services.pipelines import read_status
from router.settings import load
from tests.processes import ManualClock


def event(batch: int = 0, rows: int = 5, bad: int = 0, sink: str = "files") -> dict[str, Any]:
    """Return an event as Spark 4.2 tells it."""
    return {
        "name": f"large/{sink}",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 500},
        "eventTime": {},
        "observedMetrics": {"router_counts": {"rows": rows, "bad": bad}},
        "sources": [
            {
                "endOffset": {"orders": {"0": 5, "1": 2}},
                "latestOffset": {"orders": {"0": 9, "1": 2}},
            }
        ],
    }


@pytest.fixture
def progress(clock: ManualClock) -> PipelineProgress:
    return PipelineProgress(clock)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=20))
def test_rows_and_bad_records_add_up(batches: list[tuple[int, int]]) -> None:
    progress = PipelineProgress(lambda: 0.0)
    for batch, (rows, bad) in enumerate(batches):
        progress.add(event(batch, rows, bad))
    assert progress.batches("files") == len(batches)
    assert progress.dead_letters() == sum(bad for _, bad in batches)
    if batches:
        assert progress.sinks()["files"]["rows"] == sum(rows for rows, _ in batches)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9))
def test_worst_batch_is_known_however_many_come_after_it(batches: list[tuple[int, int]]) -> None:
    progress = PipelineProgress(lambda: 0.0)
    for batch, (good, bad) in enumerate(batches):
        progress.add(event(batch, good + bad, bad))
    found = progress.sinks()["files"]
    shares = [bad / (good + bad) for good, bad in batches if good + bad]
    assert found["worst_bad"] / max(1, found["worst_rows"]) == max(shares, default=0)


def test_idle_event_is_no_batch(progress: PipelineProgress) -> None:
    progress.add(event(3))
    progress.add(event(3, rows=0))
    assert progress.batches("files") == 1


def test_bad_records_are_not_counted_once_for_each_sink(progress: PipelineProgress) -> None:
    for sink in ("files", "table", "dead-letters"):
        progress.add(event(bad=2, sink=sink))
    assert progress.dead_letters() == 2


def test_end_of_runs_is_waited_for_and_not_for_ever(progress: PipelineProgress) -> None:
    assert progress.wait_for_end([], 0.0)
    progress.end("a")
    assert not progress.wait_for_end(["a", "b"], 0.01)
    threading.Timer(0.05, progress.end, ["b"]).start()
    assert progress.wait_for_end(["a", "b"], 30.0)


def test_line_tells_rate_lag_time_and_dead_letters(progress: PipelineProgress) -> None:
    progress.add(event(bad=1))
    assert progress.line() == (
        "10 rows/s  5 rows  batch 500 ms  lag 4 (orders/0 4)  1 dead letters"
    )


def test_lag_of_the_routers_own_offsets_is_told() -> None:
    end = {"version": 1, "next": {"t": {"0": "3:4"}}, "index": {"t": {"0": 40}}}
    latest = {"version": 1, "next": {"t": {"0": "3:9"}}, "index": {"t": {"0": 100}}}
    texts = {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
    assert lags(texts) == {"t/0": 60}


def test_lag_has_the_names_that_rows_have() -> None:
    default, other = "persistent://public/default/t", "persistent://public/other/t"
    latest = {"version": 1, "index": {default: {"-1": 7}, other: {"1": 8}, "t u": {"0": 9}}}
    settings = load(None, {}, {})
    progress = PipelineProgress(
        lambda: 0.0, short=lambda name: settings.shortest_name(settings.topic(name))
    )
    _, sink = progress.add({"name": "x", "sources": [{"latestOffset": latest}]})
    assert sink.lag == {"t/0": 7, f"{other}/1": 8, "t u/0": 9}


def test_lags_of_many_partitions_are_bounded_and_keep_their_sum() -> None:
    latest = {"t": {str(n): n for n in range(3 * MAX_LAGS)}}
    found = lags({"endOffset": {}, "latestOffset": latest})
    assert len(found) == MAX_LAGS + 1
    assert sum(found.values()) == sum(range(3 * MAX_LAGS))


@pytest.mark.parametrize("odd", [None, "", "no json", "[1]", 7, {"t": 1}, {"t": {"0": "x"}}])
def test_offsets_of_no_known_form_have_no_lag(odd: object) -> None:
    assert lags({"endOffset": odd, "latestOffset": odd}) == {}


def test_lag_is_as_old_as_the_oldest_unread_message() -> None:
    history = LagHistory()
    assert history.seconds(10.0, 100, 100) == 0.0
    assert history.seconds(20.0, 150, 100) == 0.0
    assert history.seconds(25.0, 200, 100) == 5.0
    # What came at 20 s is read, and what came at 25 s is not.
    assert history.seconds(30.0, 200, 150) == 5.0
    assert history.seconds(31.0, 200, 200) == 0.0
    assert history.seconds(40.0, 10, 4) == 0.0
    assert history.seconds(41.0, 10, 4) == 1.0


def test_times_of_a_lag_are_bounded() -> None:
    history = LagHistory()
    for second in range(5 * MAX_LAG_TIMES):
        assert history.seconds(float(second), second + 1, 0) == second
    assert len(history._stored) <= MAX_LAG_TIMES


def test_metrics_name_all_sinks_from_the_start(free_port: int) -> None:
    progress = PipelineProgress(lambda: 0.0, ["files", "dead-letters"])
    assert progress.line().startswith("waiting for the first batch")
    end = serve(f"127.0.0.1:{free_port}", "orders", progress)
    with urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    end()
    for sink in "files", "dead-letters":
        assert f'router_pipeline_rows_total{{pipeline="orders",sink="{sink}"}} 0.0' in text


def test_metrics_are_served_until_they_end(progress: PipelineProgress, free_port: int) -> None:
    progress.add(event(bad=1))
    end = serve(f"127.0.0.1:{free_port}", "large", progress)
    with urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    end()
    assert 'router_pipeline_rows_total{pipeline="large",sink="files"} 5.0' in text
    assert 'router_pipeline_bad_records_total{pipeline="large",sink="files"} 1.0' in text
    assert (
        'router_pipeline_lag_messages{partition="orders/0",pipeline="large",sink="files"} 4.0'
    ) in text
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10)


@pytest.mark.parametrize("address", ["", "9404", "host:", "127.0.0.1:70000"])
def test_wrong_address_of_metrics_is_refused(address: str, progress: PipelineProgress) -> None:
    with pytest.raises(SettingError, match="--metrics"):
        serve(address, "large", progress)


def test_status_comes_back_and_is_never_half(progress: PipelineProgress, tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    progress.add(event())
    write_status(tmp_path, {"state": "running", "sinks": progress.sinks()})
    found = read_status(tmp_path)
    assert found is not None
    assert found["sinks"]["files"]["lag"] == {"orders/0": 4, "orders/1": 0}
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_status_knows_no_lag_before_the_first_batch(tmp_path: Path) -> None:
    started = PipelineProgress(lambda: 0.0, ["files"])
    write_status(tmp_path, {"state": "running", "sinks": started.sinks()})
    assert status_lines("large", tmp_path)[0][1].split() == ["files", "no", "batch", "yet"]
    started.add(event())
    write_status(tmp_path, {"state": "running", "sinks": started.sinks()})
    assert "lag 4" in status_lines("large", tmp_path)[0][1]


def test_lag_is_unknown_until_a_batch_has_ended(free_port: int) -> None:
    progress = PipelineProgress(lambda: 0.0, ["files"])
    end = serve(f"127.0.0.1:{free_port}", "large", progress)

    def text() -> str:
        with urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    assert progress.sinks()["files"]["lag_seconds"] is None
    before = text()
    progress.add(event())
    after = text()
    end()
    sample = 'router_pipeline_lag_seconds{pipeline="large",sink="files"} 0.0'
    assert (sample in before, sample in after) == (False, True)


def test_lag_of_a_source_that_does_not_count_is_unknown(
    progress: PipelineProgress, tmp_path: Path
) -> None:
    progress.add({**event(), "sources": [{"endOffset": "7", "latestOffset": None}]})
    write_status(tmp_path, {"state": "running", "sinks": progress.sinks()})
    assert "lag unknown" in status_lines("large", tmp_path)[0][1]


def test_status_of_a_run_that_vanished_says_killed(tmp_path: Path) -> None:
    note = {"state": "running", "pid": 2**22 + 1, "host": socket.gethostname(), "sinks": {}}
    write_status(tmp_path, note)
    lines, well = status_lines("large", tmp_path)
    assert "killed" in lines[0]
    assert not well


def test_status_of_a_run_that_lives_says_running(tmp_path: Path) -> None:
    lock = Lock(tmp_path, "large")
    lock.acquire()
    write_status(tmp_path, {"state": "running", "pid": 1, "host": socket.gethostname()})
    lines, well = status_lines("large", tmp_path)
    lock.release()
    assert "running" in lines[0]
    assert well


def test_status_tells_why_a_run_failed(tmp_path: Path) -> None:
    write_status(tmp_path, {"state": "failed", "error": "sink files: the disk is full"})
    lines, well = status_lines("large", tmp_path)
    assert lines[1].strip() == "sink files: the disk is full"
    assert not well
