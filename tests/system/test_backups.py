"""`router backup` beside publishers, with kills, and `router restore` on another folder."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.processes import wait_until
from tests.system.test_jetstream_http import HttpClient
from tests.system.traffic import Load, ask, loaded, poll, post, read_all, router, started

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]

KILLS = int(os.environ.get("SOAK_BACKUP_KILLS", "1"))
SMALL = {"storage_journal": "1M", "storage_segment": "512K"}


def backing_up(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start a backup of the folder's data."""
    command = [sys.executable, "-m", "router", "backup", str(folder / "backups")]
    return subprocess.Popen(
        [*command, "--data", str(folder / "data"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def taken(folder: Path, *options: str) -> dict[str, Any]:
    """Take a backup, and return what it says of itself."""
    done = router(folder, "backup", str(folder / "backups"), "--json", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def restored(folder: Path, backup: str) -> Path:
    """Restore a backup of a folder into another one, which needs no recovery; return that."""
    place = folder / f"restored-{backup}"
    place.mkdir()
    done = router(place, "restore", str(folder / "backups"), "--backup", backup)
    assert done.returncode == 0, done.stderr
    assert list((place / "data" / "journal").iterdir()) == []
    done = router(place, "check")
    assert (done.returncode, "in order" in done.stdout) == (0, True), done.stdout
    return place


def expect_prefix(loads: Sequence[Load], before: Sequence[int], stored: list[str]) -> None:
    """Each publisher's messages up to one that it sent: all that were answered before the backup.

    What a publisher sent when the broker was killed may be stored or not.
    """
    assert len(stored) == len(set(stored)), "stored twice"
    for load, count in zip(loads, before, strict=True):
        acknowledged = load.acknowledged
        mine = [message for message in stored if message.startswith(f"{load.label}:")]
        known = [message for message in mine if message in {*acknowledged}]
        assert len(known) >= count, f"{load.label}: answered before the backup, and not in it"
        assert known == acknowledged[: len(known)], f"{load.label}: not a prefix"


def test_backups_beside_publishers_survive_kills_of_the_broker_and_of_the_command(
    tmp_path: Path,
) -> None:
    chance, found = random.Random(4), []
    killed = {"broker": 0, "command": 0}
    with started(tmp_path, "--workers", "1", **SMALL) as stack:
        with loaded(stack, "t", size=4000) as loads:
            time.sleep(0.5)
            for number in range(KILLS):
                for who in killed:
                    process = backing_up(tmp_path, "--rate", "300K")
                    time.sleep(chance.uniform(0.3, 1.5))
                    ended = process.poll() is not None
                    os.kill(stack.broker() if who == "broker" else process.pid, signal.SIGKILL)
                    status, said = process.wait(40), process.stderr.read() if process.stderr else ""
                    process.communicate()
                    killed[who] += not ended
                    expected = -signal.SIGKILL if who == "command" else os.EX_TEMPFAIL
                    assert status in {expected, 0, os.EX_UNAVAILABLE}, said
                    if status == os.EX_TEMPFAIL:
                        assert "take the backup again" in said
                stack.wait_ready()
                before = [len(load.acknowledged) for load in loads]
                made = taken(tmp_path, *(["--verify"] if number else []))
                assert made["problems"] == []
                found.append((made["backup"]["id"], before))
        wait_until(lambda: not (tmp_path / "data" / "backup").exists(), 5)
    assert sum(killed.values()) >= KILLS
    for backup, before in found:
        with started(restored(tmp_path, backup), "--workers", "1", **SMALL) as stack:
            expect_prefix(loads, before, read_all(stack, "t"))


def test_all_that_a_folder_holds_goes_on_where_the_backup_was(tmp_path: Path) -> None:
    with started(tmp_path, "--workers", "1") as stack:
        assert post(stack, "t", "one", Idempotency_Key="first").status == 200
        assert post(stack, "t", "two").status == 200
        assert poll(stack, "t/g/c", 5, "from=earliest&limit=1").json == ["one"]
        key = requests.post(
            f"{stack.url}/apiKeys/create", json={"email": "a@example.org"}, timeout=9
        )
        schema = {"type": "STRING", "schema": "", "properties": {"k": "v"}}
        where = "/admin/v2/schemas/public/default/s/schema"
        assert requests.post(stack.url + where, json=schema, timeout=9).status_code < 300
        streams = HttpClient(stack)
        streams.stream("ORDERS")
        for number in range(4):
            streams.post("/jetstream/publish/ORDERS.a", f"m{number}")
        assert streams.call("STREAM.MSG.DELETE.ORDERS", {"seq": 2})["success"]
        (message,) = streams.fetch("ORDERS/c", "?batch=1")
        assert streams.post("/jetstream/ack", message["token"]).text == "+OK"
        standing = _standing(streams)
        made = taken(tmp_path, "--verify")
        assert poll(stack, "t/g/c", 5).json == ["two"]
        assert post(stack, "t", "later").status == 200
        streams.post("/jetstream/publish/ORDERS.a", "later")
    place = restored(tmp_path, made["backup"]["id"])
    with started(place, "--workers", "1") as stack:
        assert post(stack, "t", "one", Idempotency_Key="first").status == 200
        assert poll(stack, "t/g/c", 5).json == ["two"]
        assert read_all(stack, "t") == ["one", "two"]
        assert ask(stack, "GET", f"/apiKeys/{key.json()['key']}").status == 200
        assert requests.get(stack.url + where, timeout=9).json()["properties"] == {"k": "v"}
        assert _standing(HttpClient(stack)) == standing
        messages = HttpClient(stack).fetch("ORDERS/c", "?batch=2")
        assert [message["value"] for message in messages] == ["m2", "m3"]


def _standing(streams: HttpClient) -> tuple[Any, ...]:
    state = streams.call("STREAM.INFO.ORDERS")["state"]
    consumer = streams.call("CONSUMER.INFO.ORDERS.c")
    floor = consumer["ack_floor"]["stream_seq"]
    return state["messages"], floor, state["num_deleted"], state["last_seq"]


def test_commands_refuse_with_a_sentence_and_their_status(tmp_path: Path) -> None:
    backups = str(tmp_path / "backups")
    refused = router(tmp_path, "backup", backups)
    assert (refused.returncode, "holds no data" in refused.stderr) == (73, True)
    assert not (tmp_path / "data").exists()
    assert router(tmp_path, "pub", "t", text="one\ntwo\n").returncode == 0
    inside = router(tmp_path, "backup", str(tmp_path / "data" / "backups"))
    assert (inside.returncode, "in the data folder" in inside.stderr) == (73, True)
    ids = [taken(tmp_path, "--keep", "1")["backup"]["id"] for _ in range(2)]
    listed = json.loads(router(tmp_path, "backup", backups, "--list", "--json").stdout)
    assert [backup["id"] for backup in listed["backups"]] == ids[1:]
    for _ in range(20):  # the broker that a command started may hold the folder for a moment
        refused = router(tmp_path, "restore", backups)
        if "is not empty" in refused.stderr:
            break
    assert (refused.returncode, "is not empty" in refused.stderr) == (73, True)
    unknown = router(tmp_path, "restore", backups, "--backup", ids[0])
    assert (unknown.returncode, ids[0] in unknown.stderr) == (73, True)
    (segment,) = (tmp_path / "backups" / "segments").rglob("*.seg")
    damage(segment)
    damaged = router(tmp_path, "backup", backups, "--verify", "--backup", "latest")
    assert (damaged.returncode, str(segment) in damaged.stdout) == (65, True)
    other = tmp_path / "other"
    other.mkdir()
    refused = router(other, "restore", backups)
    assert (refused.returncode, "is damaged" in refused.stderr) == (65, True)
    # No broker serves a part of it.
    assert "router restore" in (other / "data" / "READ-ONLY").read_text()


def test_older_backups_stay_until_a_new_one_is_read_without_a_problem(tmp_path: Path) -> None:
    options = ["backup", str(tmp_path / "backups"), "--keep", "1", "--verify", "--json"]
    assert router(tmp_path, "pub", "t", text="one\ntwo\n").returncode == 0
    ids = [taken(tmp_path)["backup"]["id"]]
    (segment,) = (tmp_path / "backups" / "segments").rglob("*.seg")
    damage(segment)
    found = router(tmp_path, *options)
    report = json.loads(found.stdout)
    assert (found.returncode, "removed" in report) == (65, False)
    assert str(segment) in report["problems"][0]
    ids.append(report["backup"]["id"])
    # The segment was copied again, for all.
    found = router(tmp_path, *options)
    report = json.loads(found.stdout)
    assert (found.returncode, report["problems"], report["removed"]) == (0, [], ids)


def damage(path: Path) -> None:
    """Change a byte of a file."""
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
