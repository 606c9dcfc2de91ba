"""`router zk`: what it prints of leases, and whose it takes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from router.cli import main
from router.coordination.zookeeper import inspection
from router.coordination.zookeeper.inspection import GroupView, PartitionView

ORDERS = "persistent://public/default/orders"
VIEWS = [
    GroupView(
        ORDERS,
        "billing",
        {"c2": ("node-b",), "c1": ("node-a", "node-b")},
        (PartitionView(0, "node-a", ("node-b",)), PartitionView(1, "node-b", ())),
    ),
    GroupView("persistent://other/space/x", "g", {}, (PartitionView(-1, "node-a", ()),)),
]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What ZooKeeper was asked, which answers with VIEWS."""
    asked: list[tuple[object, ...]] = []

    def show(*arguments: object) -> list[GroupView]:
        asked.append(arguments)
        return VIEWS

    def release(*arguments: object) -> int:
        asked.append(arguments)
        return 2

    monkeypatch.setattr(inspection, "show", show)
    monkeypatch.setattr(inspection, "release", release)
    return asked


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["zk", *arguments], env={"ROUTER_CONFIG": "", **environ})


WHERE = ("--zookeeper", "zk:2181/router")


def test_show_prints_holders_waiters_and_ids(calls: list[tuple[object, ...]]) -> None:
    result = run("show", *WHERE, ROUTER_ZOOKEEPER_DIGEST="u:p")
    assert result.output.splitlines() == [
        "orders, group billing",
        "  partition 0      node-a; waiting: node-b",
        "  partition 1      node-b",
        "  consumer c1 is live on node-a, node-b",
        "  consumer c2 is live on node-b",
        "persistent://other/space/x, group g",
        "  not partitioned  node-a",
    ]
    assert calls == [("zk:2181/router", "u:p", 15.0)]


def test_show_prints_json_for_programs() -> None:
    found = json.loads(run("show", *WHERE, "--json").output)
    assert [view["topic"] for view in found] == [ORDERS, "persistent://other/space/x"]
    assert found[0]["partitions"][0] == {"partition": 0, "holder": "node-a", "waiting": ["node-b"]}
    assert found[0]["ids"]["c1"] == ["node-a", "node-b"]


def test_show_prints_one_topic_when_asked() -> None:
    assert "other" not in run("show", *WHERE, "--topic", "orders").output
    assert run("show", *WHERE, "--topic", "absent").output.startswith("No node holds")
    assert run("show", *WHERE, "--topic", "absent", "--json").output == "[]\n"


@pytest.mark.parametrize(("more", "partition"), [((), None), (("3",), 3)])
def test_release_takes_the_leases_of_a_group(
    calls: list[tuple[object, ...]], more: tuple[str, ...], partition: int | None
) -> None:
    result = run("release", "orders", "billing", *more, *WHERE)
    assert result.output == "Took 2 leases of orders, group billing, from their holders\n"
    assert calls == [("zk:2181/router", "", ORDERS, "billing", partition, 15.0)]


@pytest.mark.parametrize("command", [("show",), ("release", "orders", "billing")])
def test_zk_asks_which_zookeeper(command: tuple[str, ...]) -> None:
    result = run(*command)
    assert result.exit_code == 78
    assert "which ZooKeeper?" in result.output
