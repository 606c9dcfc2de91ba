"""Last night's backup of a router in traffic, restored elsewhere by the commands of the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.audit import Delivery
from tests.system.growing import LABELS, Subscriber, Town
from tests.system.nodes import until_true

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

FOLDER = "/var/backups/dragoman"
# Between an answer and its acknowledgement, which follows it.
ACKNOWLEDGED = 2.0


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """The page's first router behind nginx."""
    with Town(tmp_path) as found:
        yield found


class Restored:
    """Where the restored router listens."""

    def __init__(self, address: str) -> None:
        self.port = int(address.rpartition(":")[2])


def test_a_backup_of_a_router_in_traffic_is_restored_with_messages_and_positions(
    town: Town,
) -> None:
    town.places[FOLDER] = str(town.folder / "backups")
    town.follow("Before you begin")
    traffic = town.traffic
    traffic.start()
    times: dict[str, float] = {}

    def note(command: str) -> bool:
        if command.startswith("router backup") and "--keep" in command:
            traffic.flow(30)
            times["begun"] = time.monotonic()
        elif "--list" in command:
            times["done"] = time.monotonic()
        return False

    town.follow("Backup each night", note)
    traffic.flow(30)
    stored = {p.message for p in traffic.audit.posts if p.status == 200 and p.sent < times["begun"]}
    late = {p.message for p in traffic.audit.posts if p.sent > times["done"]}
    assert len(stored) >= 2 * len(LABELS)
    node = Restored(town.places["127.0.0.1:3909"])
    given: list[Delivery] = []
    readers = [Subscriber([node], group, "1", given) for group in ("everything", "audit")]
    for reader in readers:
        reader.start()

    def has(group: str) -> set[str]:
        return {m for d in list(given) if d.group == group for m in d.messages}

    until_true(lambda: stored <= has("everything"), 30)
    held = has("everything")
    known = {m for d in traffic.audit.deliveries if d.group == "audit" for m in d.messages}
    until_true(lambda: held - known <= has("audit"), 30)
    time.sleep(1)
    for reader in readers:
        reader.hang_up()
        reader.end()
    held = has("everything")
    assert not held & late, "published after the backup, and in it"
    # What is new to the group comes, and again only what it was given while the backup was made.
    settled = {
        message
        for delivery in traffic.audit.deliveries
        if delivery.group == "audit" and delivery.at < times["begun"] - ACKNOWLEDGED
        for message in delivery.messages
    }
    assert held - known <= has("audit")
    assert not has("audit") & settled
