"""`router migrate`: shows first, writes when told to, and never prints a secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from router.backends import Backend, opening
from router.backends.memory import MemoryBackend, MemoryNode
from router.cli import main
from router.coordination.zookeeper import tree
from router.model import TopicInfo, TopicName
from router.node import Node
from router.services.keys import ApiKey
from router.settings import Settings
from tests.unit.migration.trees import IV, KEY, MemoryTree, golden

ROOT = "/fe3c/cambria/config"
LOCK = ("--key", KEY, "--iv", IV)


class Site:
    """An original's tree, and a router of ours in memory."""

    def __init__(self) -> None:
        self.tree = MemoryTree(dict(golden()), ROOT)
        self.asked: list[str] = []
        self.backend = MemoryBackend(auto_create=True, auto_partitions=0, wall_ms=lambda: 1)
        self.node = MemoryNode(idle=5.0, empty_polls_per_minute=0)

    @contextmanager
    def store(self, _settings: Settings) -> Iterator[tuple[Node, Backend]]:
        """Stand in for the store that settings name."""
        yield self.node, self.backend

    @contextmanager
    def opened(self, servers: str, _timeout: float) -> Iterator[MemoryTree]:
        """Stand in for a ZooKeeper."""
        self.asked.append(servers)
        yield self.tree

    def records(self) -> dict[str, list[str]]:
        """Return the names of everything in our registry."""
        kinds = ("key", "topic", "blacklist")
        return {kind: [one.name for one in self.node.registry.list(kind, 1.0)] for kind in kinds}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()
    monkeypatch.setattr(opening, "opened", made.store)
    monkeypatch.setattr(tree, "opened", made.opened)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["migrate", *arguments], env={"ROUTER_CONFIG": ""})


def migrate(*arguments: str) -> Result:
    return run("--from-zookeeper", "zk:2181", *LOCK, *arguments)


def test_migrate_writes_nothing_unless_told_to(site: Site) -> None:
    result = migrate()
    assert site.asked == ["zk:2181"]
    assert site.records() == {"key": [], "topic": [], "blacklist": []}
    lines = result.output.splitlines()
    assert lines[0].split() == ["key", "K1abcdefghijklmn", "new", "anna@example.org"]
    assert "6 new, 0 same, 0 differs, 2 cannot be read." in lines[-1]
    assert "Nothing was written: --apply does it." in lines[-1]
    assert result.exit_code == 1, "something cannot be read"


def test_migrate_imports_everything_once(site: Site) -> None:
    assert "Imported." in migrate("--apply").output
    first = site.records()
    assert [len(names) for names in first.values()] == [2, 2, 2]
    result = migrate("--apply")
    assert "0 new, 6 same, 0 differs" in result.output
    assert site.records() == first


def test_migrate_prints_no_secret(site: Site) -> None:
    del site
    output = migrate("--apply").output + migrate().output
    assert "secret of" not in output
    assert KEY not in output


def test_migrate_keeps_what_differs_unless_told_to_overwrite(site: Site) -> None:
    ours = ApiKey("K1abcdefghijklmn", "ours")
    site.node.registry.put("key", ours.name, ours.dump(), None, 1.0)
    assert "differs, stays as it is" in migrate("--apply").output
    kept = site.node.registry.get("key", ours.name, 1.0)
    assert kept is not None
    assert ApiKey.load(kept) == ours
    assert "differs, is overwritten" in migrate("--apply", "--overwrite").output
    taken = site.node.registry.get("key", ours.name, 1.0)
    assert taken is not None
    assert ApiKey.load(taken).secret == "secret of K1abcdefghijklmn"


def test_migrate_warns_of_topics_that_are_not_there_yet(site: Site) -> None:
    site.backend.create_topic(TopicInfo(TopicName.parse("listed")), 1.0)
    output = migrate().output
    assert "make it with `router topics create org.onap.orders`" in output
    assert "router topics create listed" not in output


def test_migrate_takes_everything_from_the_originals_properties(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "MsgRtrApi.properties"
    site.tree = MemoryTree(dict(golden()), "/elsewhere")
    file.write_text(
        f"config.zk.servers=zk9\nconfig.zk.root=/elsewhere\n"
        f"cambria.secureConfig.key={KEY}\ncambria.secureConfig.iv={IV}\n"
    )
    assert "6 new" in run("--properties", str(file)).output
    assert site.asked == ["zk9"]


def test_migrate_succeeds_when_everything_can_be_read(site: Site) -> None:
    site.tree = MemoryTree({"/topics/t": b'{"owner":"K"}'}, ROOT)
    result = migrate()
    assert result.exit_code == 0
    assert "owner K, 0 readers, 0 writers" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "which ZooKeeper?"),
        (("--from-zookeeper", "zk", "--key", KEY), "go together"),
        (("--from-zookeeper", "zk", "--root", "/absent"), "nothing below /absent"),
        (("--properties", "/absent"), "/absent"),
    ],
)
def test_migrate_refuses_what_it_cannot_use(
    site: Site, arguments: tuple[str, ...], said: str
) -> None:
    del site
    result = run(*arguments)
    assert result.exit_code == 78
    assert said in result.output
