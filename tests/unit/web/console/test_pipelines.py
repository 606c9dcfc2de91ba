"""The page of pipelines."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.model import ConsumerId, PollOutcome, Subscription
from router.services import pipelines as service
from router.services.consume import PollMailbox
from router.services.pipelines import LEASES, LOCK, STATUS
from tests.unit.web.applications import HASHES, Site, header

BROWSER = {"Accept": "text/html"}
PAGE = "/console/pipelines"
RUNNING = {
    "state": "running",
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "started": "2026-07-31T13:45:00+00:00",
    "updated": "2026-07-31T13:46:00+00:00",
    "dead_letters": 3,
    "sinks": {
        "table": {
            "batch": 4,
            "rows": 10,
            "rows_per_second": 2.5,
            "lag": {"orders/0": 7, "b": 1},
            "lag_seconds": 90.04,
        },
        "topic": {"batch": 4, "rows": 10, "rows_per_second": 1.5, "lag": {"orders/0": 2}},
    },
}


class Folders:
    """The folders that the page reads."""

    def __init__(self, root: Path) -> None:
        self.declared, self.data = root / "declared", root / "data"
        self.declared.mkdir()

    def declare(self, name: str, text: str) -> None:
        (self.declared / f"{name}.toml").write_text(text, "utf-8")

    def state(self, name: str, status: dict[str, Any]) -> Path:
        folder = self.data / "pipelines" / name
        folder.mkdir(parents=True)
        (folder / STATUS).write_text(json.dumps(status), "utf-8")
        return folder


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture
def page(sites: Callable[..., Site], folders: Folders) -> Site:
    return sites(data_dir=str(folders.data), pipelines_folder=str(folders.declared))


def rows(site: Site) -> dict[str, Any]:
    answer = site.client.get(PAGE, headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.text
    return {row["name"]: row for row in answer.get_json()["pipelines"]}


def test_page_without_pipelines_says_how_to_make_one(page: Site) -> None:
    assert rows(page) == {}
    assert "router pipeline new NAME" in page.client.get(PAGE, headers=BROWSER).text


@pytest.mark.slow
def test_lag_is_unknown_while_the_first_batch_of_a_sink_runs(page: Site, folders: Folders) -> None:
    first = {"batch": -1, "rows": 0, "lag": {}, "lag_seconds": None}
    known: Any = RUNNING["sinks"]
    folders.state("orders", {**RUNNING, "sinks": {**known, "late": first}})
    orders = rows(page)["orders"]
    assert (orders["lag"], orders["lag_seconds"]) == (None, None)
    assert [sink["lag"] for sink in orders["sinks"]] == [8, 2, None]
    assert "lag unknown" in page.client.get(PAGE, headers=BROWSER).text


@pytest.mark.slow
def test_declared_pipelines_are_shown_with_their_runs(page: Site, folders: Folders) -> None:
    folders.declare("orders", 'description = "Orders <b>as</b> a table."')
    folders.declare("idle", "")
    folders.state("orders", RUNNING)
    found = rows(page)
    assert list(found) == ["idle", "orders"]
    assert (found["idle"]["state"], found["idle"]["lag"]) == ("never ran", None)
    orders = found["orders"]
    assert (orders["state"], orders["node"]) == ("running", socket.gethostname())
    assert (orders["rows_per_second"], orders["lag"], orders["bad_records"]) == (4.0, 8, 3)
    assert orders["lag_seconds"] == 90.0
    assert [sink["name"] for sink in orders["sinks"]] == ["table", "topic"]
    text = page.client.get(PAGE, headers=BROWSER).text
    assert "1.5 min" in text
    exact = "2026-07-31 13:46:00.000Z"
    assert f'<time datetime="{exact.replace(" ", "T")}" title="{exact}">' in text
    assert "Orders &lt;b&gt;as&lt;/b&gt; a table." in text
    assert "router pipeline status orders" in text


def test_checkpoint_that_is_named_is_where_the_status_is(
    page: Site, folders: Folders, tmp_path: Path
) -> None:
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / STATUS).write_text(json.dumps(RUNNING | {"state": "stopped"}))
    folders.declare("a", f'checkpoint = "file://{tmp_path}/ck"')
    folders.declare("b", 'checkpoint = "s3://bucket/ck"')
    found = rows(page)
    assert (found["a"]["state"], found["b"]["state"]) == ("stopped", "never ran")


def test_last_error_is_shown_as_text(page: Site, folders: Folders) -> None:
    folders.declare("bad", "description = ")
    folders.state("failed", {"state": "failed", "error": "<script>x</script>", "sinks": [1]})
    found = rows(page)
    assert "bad.toml cannot be read" in found["bad"]["error"]
    assert (found["failed"]["state"], found["failed"]["sinks"]) == ("failed", [])
    assert "<script>x" not in page.client.get(PAGE, headers=BROWSER).text


@pytest.mark.parametrize(
    "updated", ["", "today", "2026-07-31T13:46:00", 7, "9999-12-31T23:59-23:59"]
)
def test_update_at_no_time_keeps_no_page_from_being_shown(
    page: Site, folders: Folders, updated: object
) -> None:
    folders.state("orders", RUNNING | {"updated": updated})
    answer = page.client.get(PAGE, headers=BROWSER)
    assert answer.status_code == 200
    assert socket.gethostname() in answer.text


@pytest.mark.parametrize("held", [False, True])
def test_run_whose_process_is_gone_was_killed(page: Site, folders: Folders, held: bool) -> None:
    folder = folders.state("orders", RUNNING | {"pid": 2**22 + 1})
    (folder / LOCK).write_text("{}")
    with (folder / LOCK).open() as lock:
        if held:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert rows(page)["orders"]["state"] == ("running" if held else "killed")


def test_run_on_another_node_is_known_by_its_lease(page: Site, folders: Folders) -> None:
    folders.declare("orders", "")
    claim = page.node.claim(ConsumerId(Subscription(LEASES, "orders"), "run"), 0, PollMailbox(), 5)
    assert (rows(page)["orders"]["state"], rows(page)["orders"]["node"]) == ("running", "this node")
    claim.release(PollOutcome.REFUSED)
    assert rows(page)["orders"]["state"] == "never ran"


def test_files_of_any_size_and_form_are_read_within_bounds(
    page: Site, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(service, "MAX_LISTED", 3)
    folders.declare("a", "#" * 1001)
    (folders.declared / "b.toml").write_bytes(b"\xff")
    folders.state("c", {"state": 5, "pid": "x", "sinks": {"s": {"lag": 1, "rows": "many"}}})
    (folders.data / "pipelines" / "c2").mkdir()
    (folders.data / "pipelines" / "c2" / STATUS).write_text("[]")
    folders.declare("d", "")
    found = rows(page)
    assert list(found) == ["a", "b", "c"]
    assert "more than 1000 bytes" in found["a"]["error"]
    assert (found["c"]["state"], found["c"]["sinks"][0]["rows"]) == ("5", 0)


def test_page_is_for_administrators(
    sites: Callable[..., Site], folders: Folders, tmp_path: Path
) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    users.write_text("".join(f"{name}:{HASHES['bcrypt']}\n" for name in ("anna", "chief")))
    rules.write_text("anna t subscribe\nchief * manage\n")
    site = sites(
        auth_users=str(users),
        auth_permissions=str(rules),
        data_dir=str(folders.data),
        pipelines_folder=str(folders.declared),
    )
    for user, status in (("anna", 403), ("chief", 200)):
        asker = {"Authorization": header(user, "secret")}
        assert site.client.get(PAGE, headers=asker).status_code == status
