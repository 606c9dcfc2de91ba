"""Processes that are stopped, killed, doubled and told to leave: work goes on, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from router.broker.folder import LOCK
from tests.ports import free_port
from tests.processes import run_serve, wait_until
from tests.system.stack import Stack
from tests.system.traffic import (
    Answer,
    Wire,
    ask,
    create,
    expect_kept,
    loaded,
    poll,
    post,
    read_all,
    router,
    started,
    waiting,
)

PAUSES = int(os.environ.get("SOAK_BROKER_PAUSES", "1"))
WORKER_KILLS = int(os.environ.get("SOAK_WORKER_KILLS", "5"))
REPEATS = int(os.environ.get("SOAK_IDEMPOTENT_REPEATS", "5"))
LONGEST = 480 + 15 * max(WORKER_KILLS, REPEATS, PAUSES)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(LONGEST)]
PAUSE = 3.0
# The application in a process that nobody supervises; it kills its broker after each publish.
PLAIN_PROCESS = """
import json, os, signal, sys
from pathlib import Path
from router.app import create_app

app = create_app()
client = app.test_client()
brokers = set()
for number in range(4):
    answer = client.post("/events/t", data=str(number), content_type="text/plain")
    assert answer.status_code == 200, answer.data
    broker = int(Path(sys.argv[1]).read_text())
    brokers.add(broker)
    os.kill(broker, signal.SIGKILL)
answer = client.get("/events/t/g/c?from=earliest&timeout=10000")
print(json.dumps([len(brokers), answer.status_code, json.loads(answer.data)]))
app.extensions["router.close"]()
"""


def server_of(stack: Stack, client: Wire) -> int:
    """Return the worker that serves a connection, as soon as one does."""
    found: list[int] = []

    def is_served() -> bool:
        # A worker that was just started has connections in its queue before it serves them.
        found[:] = _servers(stack, client.socket.getsockname()[1])
        return bool(found)

    wait_until(is_served)
    return found[0]


def _servers(stack: Stack, port: int) -> list[int]:
    inode = "0"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        here, there = (int(end.split(":")[1], 16) for end in fields[1:3])
        if (here, there) == (stack.port, port):
            inode = fields[9]
    found = []
    for pid in stack.workers():
        for file in Path(f"/proc/{pid}/fd").iterdir():
            # Others may be closed between the listing and the look.
            with contextlib.suppress(OSError):
                if str(file.readlink()) == f"socket:[{inode}]":
                    found.append(pid)
    return found


def ended(pid: int) -> bool:
    """Return whether a process is no more, its connections included, waited for or not.

    The first thread may be a zombie while others have still to end, and hold all that is open.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except OSError:
        return True


def serve_refused(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a `serve` that has to give up."""
    flags = ("--port", str(free_port()), "--data", str(folder / "data"))
    return run_serve(folder, *flags, **settings)


@pytest.mark.parametrize("patience", ["15s", "2s"])
def test_nothing_is_lost_when_the_broker_stands_still(tmp_path: Path, patience: str) -> None:
    times = {"backend_timeout": patience, "publish_timeout": patience}
    with started(tmp_path, "--workers", "2", **times) as stack:
        create(stack, "parts", 2)
        assert post(stack, "quiet", "start").status == 200
        assert poll(stack, "quiet/g/c", 5).json == ["start"]
        with ThreadPoolExecutor() as pool, loaded(stack, "parts") as loads:
            waiting = pool.submit(poll, stack, "quiet/g/c", 60)
            for _ in range(PAUSES):
                time.sleep(0.5)
                broker = stack.broker()
                os.kill(broker, signal.SIGSTOP)
                try:
                    meanwhile = [pool.submit(poll, stack, "parts/g/c", 1) for _ in range(4)]
                    time.sleep(PAUSE)
                finally:
                    os.kill(broker, signal.SIGCONT)
                for answer in meanwhile:
                    expect_told(answer.result())
                expect_ready(stack)
                assert stack.broker() == broker
            assert post(stack, "quiet", "end").status == 200
            assert waiting.result(30).json == ["end"]
        for load in loads:
            for refusal in load.refused:
                expect_told(refusal)
            assert load.slowest < PAUSE + 5
        if patience == "15s":
            assert [load.refused for load in loads] == [[]] * len(loads)
        expect_kept(loads, read_all(stack, "parts"))


def expect_told(answer: Answer) -> None:
    """Whoever was not served is told that trying again may help."""
    assert answer.status in {200, 503, 504}, answer.body
    if answer.status != 200:
        assert answer.json["mrErrorCode"] in {3002, 3006}
    if answer.status == 503:
        assert int(answer.headers["retry-after"]) >= 1


def expect_ready(stack: Stack) -> None:
    """Every worker answers; the kernel deals new connections to all of them."""
    began = time.monotonic()
    assert {ask(stack, "GET", "/ready").status for _ in range(20)} == {200}
    assert time.monotonic() - began < 5


def test_polls_of_a_killed_worker_leave_their_partitions_at_once(tmp_path: Path) -> None:
    with started(tmp_path, "--workers", "2", consume_idle="300ms") as stack:
        assert post(stack, "t", "start").status == 200
        assert poll(stack, "t/g/a", 5).json == ["start"]
        for number in range(WORKER_KILLS):
            holder, other = f"holder{number}", f"other{number}"
            with Wire(stack) as client:
                client.poll(f"t/g/{holder}", 60)
                # Long enough for the ids before it to be forgotten: it holds all there is.
                time.sleep(0.6)
                worker = server_of(stack, client)
                os.kill(worker, signal.SIGKILL)
                wait_until(partial(ended, worker))
            assert post(stack, "t", str(number)).status == 200
            # Ten seconds are less than any timeout that could free the partition instead.
            assert poll(stack, f"t/g/{other if number % 2 else holder}", 10).json == [str(number)]
            wait_until(lambda: len(stack.workers()) == 3)


def test_a_second_serve_says_one_sentence_and_leaves(tmp_path: Path) -> None:
    with started(tmp_path, "--workers", "1") as stack:
        result = serve_refused(tmp_path, broker_linger="0s")
        assert result.returncode == 75
        expect_one_reason(result)
        assert post(stack, "t", "still here").status == 200


def test_serve_leaves_a_broker_alone_that_is_kept_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "router", "broker", "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        assert "listens" in broker.stdout.readline()
        result = serve_refused(tmp_path, broker_linger="0s")
        assert result.returncode == 75
        expect_one_reason(result)
        assert router(tmp_path, "pub", "t", text="one\n").returncode == 0
        read = router(tmp_path, "sub", "t", "--from", "earliest", "--count", "1")
        assert read.stdout == "one\n"
        assert (tmp_path / "data" / LOCK).read_text().strip() == str(broker.pid)
        broker.terminate()
        assert broker.wait(15) == 0


def expect_one_reason(result: subprocess.CompletedProcess[str]) -> None:
    reasons = [line for line in result.stderr.splitlines() if line.startswith("router: another")]
    assert len(reasons) == 1
    assert "uses the data folder" in reasons[0]
    assert "Traceback" not in result.stderr
    assert "listens on http" not in result.stdout


def test_everything_answered_is_there_after_a_stop_under_load(tmp_path: Path) -> None:
    settings = {"consume_empty_polls_per_minute": "0", "server_graceful_timeout": "50s"}
    stack = Stack(tmp_path, "--workers", "2", **settings)
    stack.start()
    assert post(stack, "quiet", "start").status == 200
    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as polls:
        clients = [polls.enter_context(Wire(stack)) for _ in range(6)]
        for number, client in enumerate(clients):
            client.poll(f"quiet/g{number}/c", 60, "from=latest")
        with loaded(stack, "t", publishers=6) as loads:
            wait_until(lambda: waiting(stack) == len(clients))
            wait_until(lambda: all(len(load.acknowledged) > 10 for load in loads))
            began = time.monotonic()
            stopping = pool.submit(stack.stop)
            answers = [client.answer() for client in clients]
            assert stopping.result(70) == 0
            took = time.monotonic() - began
    assert took < 40, "it waited for the polls instead of answering them"
    assert [(answer.status, answer.json) for answer in answers] == [(200, [])] * 6
    assert all(refusal.status == 503 for load in loads for refusal in load.refused)
    stack.start()
    expect_kept(loads, read_all(stack, "t"))
    assert stack.stop() == 0


def test_each_restart_adds_to_what_was_there(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "--workers", "2")
    for number in range(3):
        stack.start()
        assert post(stack, "t", str(number)).status == 200
        assert stack.stop() == 0
    stack.start()
    assert read_all(stack, "t") == ["0", "1", "2"]
    assert stack.stop() == 0


def test_commands_that_find_no_broker_at_once_share_one(tmp_path: Path) -> None:
    count = 6
    with ThreadPoolExecutor(count) as pool:
        done = [pool.submit(router, tmp_path, "pub", "t", text=f"{n}\n") for n in range(count)]
        results = [one.result() for one in done]
    said = [(r.returncode, r.stderr.splitlines()[-1]) for r in results]
    assert said == [(0, "Published 1 messages to t")] * count
    assert any("a broker is started there" in r.stderr for r in results)
    read = router(tmp_path, "sub", "t", "--from", "earliest", "--count", str(count))
    assert sorted(read.stdout.split()) == [str(number) for number in range(count)]
    log = (tmp_path / "data" / "broker.log").read_text()
    assert "Traceback" not in log
    holder = Path("/proc") / (tmp_path / "data" / LOCK).read_text().strip()
    wait_until(lambda: not holder.exists())


def test_a_broker_that_nobody_watches_is_started_by_the_next_request(tmp_path: Path) -> None:
    data = tmp_path / "data"
    settings = {"ROUTER_DATA_DIR": str(data), "ROUTER_BROKER_LINGER": "300ms"}
    result = subprocess.run(
        [sys.executable, "-c", PLAIN_PROCESS, str(data / LOCK)],
        cwd=tmp_path,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) == [4, 200, ["0", "1", "2", "3"]]
    holder = Path("/proc") / (data / LOCK).read_text().strip()
    wait_until(lambda: not holder.exists())


BODY = json.dumps([{"cambria.partition": f"k{n}", "n": n} for n in range(8)]).encode()


def publish_once(stack: Stack, key: str, body: bytes = BODY) -> Answer:
    kind = {"Content-Type": "application/json", "Idempotency-Key": key}
    return ask(stack, "POST", "/events/parts", body, kind)


def expect_first(answer: Answer) -> None:
    assert (answer.status, answer.json["count"]) == (200, 8)
    assert "idempotency-replayed" not in answer.headers


def expect_repeat(answer: Answer) -> None:
    assert (answer.status, answer.json["count"]) == (200, 8)
    assert answer.headers["idempotency-replayed"] == "true"


def test_a_repeat_with_the_key_is_not_stored_again_whatever_was_killed(tmp_path: Path) -> None:
    stack = Stack(tmp_path, "--workers", "2")
    stack.start()
    try:
        create(stack, "parts", 4)
        expect_first(publish_once(stack, "one"))
        expect_repeat(publish_once(stack, "one"))
        os.kill(stack.broker(), signal.SIGKILL)
        expect_repeat(publish_once(stack, "one"))
        expect_first(publish_once(stack, "two"))
        stack.kill()
        stack.start()
        expect_repeat(publish_once(stack, "two"))
        assert stack.stop() == 0
        stack.start()
        expect_repeat(publish_once(stack, "one"))
        expect_repeat(publish_once(stack, "two"))
        expect_first(publish_once(stack, "three"))
        assert set(Counter(read_all(stack, "parts")).values()) == {3}
    finally:
        stack.stop()


def test_a_keyed_publish_is_stored_once_when_the_broker_is_killed_meanwhile(tmp_path: Path) -> None:
    chance = random.Random(8)
    with started(tmp_path, "--workers", "2") as stack:
        create(stack, "parts", 4)
        for number in range(REPEATS):
            body = BODY.replace(b'"n"', b'"n%d"' % number)
            broker = stack.broker()
            with ThreadPoolExecutor() as pool:
                publishing = pool.submit(publish_once, stack, f"key {number}", body)
                time.sleep(chance.uniform(0, 0.008))
                os.kill(broker, signal.SIGKILL)
            first = publishing.result()
            assert (first.status, first.json["count"]) == (200, 8)
            expect_repeat(publish_once(stack, f"key {number}", body))
        stored = Counter(read_all(stack, "parts"))
        assert len(stored) == REPEATS * 8
        assert set(stored.values()) == {1}


def test_a_keyed_publish_is_stored_once_when_it_is_sent_many_times_at_once(tmp_path: Path) -> None:
    with started(tmp_path, "--workers", "2") as stack, ThreadPoolExecutor(8) as pool:
        create(stack, "parts", 4)
        for number in range(10):
            body = BODY.replace(b'"n"', b'"n%d"' % number)
            sent = [pool.submit(publish_once, stack, f"key {number}", body) for _ in range(8)]
            answers = [one.result() for one in sent]
            assert [(a.status, a.json["count"]) for a in answers] == [(200, 8)] * 8
        stored = Counter(read_all(stack, "parts"))
        assert len(stored) == 80
        assert set(stored.values()) == {1}
