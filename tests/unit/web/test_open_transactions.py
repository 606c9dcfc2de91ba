"""Open transactions over HTTP, in the console and on the command line: who sees and aborts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router import app
from router.backends import opening
from router.cli import status
from router.errors import ValueNotFoundError
from tests.unit.cli.servers import live
from tests.unit.cli.test_commands import backend, run
from tests.unit.web.applications import HASHES, Site, header

__all__ = ["backend"]

BROWSER = {"Accept": "text/html"}
OPEN = {
    "id": "kafka:7",
    "dialect": "kafka",
    "state": "open",
    "producer": "<orders>/0",
    "user": "anna",
    "epoch": 3,
    "begun_ms": 1_700_000_000_000,
    "age": 12.5,
    "timeout": 60.0,
    "partitions": 2,
    "positions": 1,
}
PARTS = {
    "joined": [{"topic": "persistent://public/default/t", "partition": 1, "messages": 5}],
    "commits": [
        {"group": "g", "topic": "persistent://public/default/s", "partition": 0, "number": 9}
    ],
    "acknowledged": [
        {
            "subscription": "<s>",
            "topic": "persistent://public/default/u",
            "partition": 0,
            "entries": 4,
            "through": None,
        }
    ],
}


class Broker:
    """A broker with one open transaction, until it is aborted."""

    def __init__(self) -> None:
        self.open = [OPEN]

    def call(self, name: str, transaction: str = "", **_change: Any) -> Any:
        if name == "record_change":
            return None
        if name == "transactions":
            return {"count": len(self.open), "transactions": self.open}
        if not self.open or transaction not in {OPEN["id"], OPEN["producer"]}:
            raise ValueNotFoundError(f"no transaction {transaction} is open")
        if name == "transaction":
            return OPEN | PARTS
        assert name == "abort_transaction"
        return self.open.pop()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    for module in (app, opening):
        monkeypatch.setattr(module, "open_administration", lambda *_: made)
    return made


@pytest.fixture
def url(broker: Broker) -> Iterator[str]:
    site = Site({})
    with live(site) as address:
        yield address
    site.close()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("remote", [False, True])
def test_commands_list_describe_and_abort(
    broker: Broker, remote: bool, request: pytest.FixtureRequest
) -> None:
    there = ("--server", request.getfixturevalue("url")) if remote else ()
    listed = run("transactions", "list", *there).output.splitlines()
    assert listed[0].split()[:4] == ["ID", "PRODUCER", "STATE", "AGE"]
    assert listed[1].split()[:3] == ["kafka:7", "<orders>/0", "open"]
    assert json.loads(run("transactions", "list", "--json", *there).output) == [OPEN]
    described = run("transactions", "describe", "kafka:7", *there).output
    assert "persistent://public/default/t" in described
    found = run("transactions", "describe", "kafka:7", "--json", *there).output
    assert json.loads(found) == OPEN | PARTS
    assert run("transactions", "abort", "kafka:7", *there).output == "Aborted kafka:7\n"
    assert broker.open == []
    assert run("transactions", "abort", "kafka:7", *there).exit_code == status.NOT_FOUND


def test_console_shows_and_aborts(broker: Broker, sites: Callable[..., Site]) -> None:
    site = sites()
    page = site.client.get("/console/transactions", headers=BROWSER).text
    assert "&lt;orders&gt;/0" in page
    assert 'href="/console/transactions/kafka%3A7"' in page
    page = site.client.get("/console/transactions/kafka:7", headers=BROWSER).text
    assert "Abort transaction" in page
    assert "persistent://public/default/s" in page
    assert "&lt;s&gt;" in page
    data = site.client.get("/console/transactions/kafka:7?format=json").get_json()
    assert data["joined"] == PARTS["joined"]
    done = site.client.post("/console/transactions/kafka:7/abort", headers=BROWSER)
    assert (done.status_code, done.headers["Location"]) == (303, "/console/transactions")
    assert broker.open == []
    assert "No transaction is open" in site.client.get("/console/transactions").text
    assert site.client.get("/console/transactions/kafka:7").status_code == 404


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/transactions"),
        ("GET", "/transactions/kafka:7"),
        ("POST", "/transactions/kafka:7/abort"),
        ("GET", "/console/transactions"),
        ("GET", "/console/transactions/kafka:7"),
        ("POST", "/console/transactions/kafka:7/abort"),
    ],
)
def test_transactions_are_for_administrators(
    sites: Callable[..., Site], tmp_path: Path, method: str, path: str
) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{HASHES['bcrypt']}\n")
    site = sites(auth_users=str(users))
    named = {"Authorization": header("anna", "secret")}
    assert site.client.open(path, method=method).status_code == 401
    assert site.client.open(path, method=method, headers=named).status_code == 403


def test_a_store_elsewhere_has_none_to_show(site: Site) -> None:
    assert site.client.get("/transactions").status_code == 400
    assert "own broker only" in site.client.get("/console/transactions", headers=BROWSER).text
