"""What changed between releases of Kafka, as `router kafka-messages check` finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from router.cli import main, status
from router.kafka.definitions import OWN, folder_texts
from tests.wire.kafka.releases import releases

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

STRAY = "DescribeProducersRequest.json"
"""In 2.8.2 two brackets follow its object."""
RENAMED_IN_3 = {"AlterIsrRequest", "AlterIsrResponse"}
RENAMED_IN_4 = {"ListClientMetricsResourcesRequest", "ListClientMetricsResourcesResponse"}
"""Messages that have another name later: one that is found by its name is not there."""


def check(old: Path, new: Path) -> Result:
    return CliRunner().invoke(main, ["kafka-messages", "check", str(old), str(new), "--json"])


def changes(done: Result) -> dict[str, set[str]]:
    """Return the messages, or their fields, by the kind of what is found."""
    answer: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    found: dict[str, set[str]] = {}
    for one in answer["findings"]:
        place = f"{one['message']}.{one['field']}" if one["field"] else one["message"]
        found.setdefault(one["kind"], set()).add(place)
    assert answer["kinds"] == sorted(found)
    assert done.exit_code == (status.FAILED if found else status.DONE)
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("definitions")
    found = {}
    for version in ("2.8.2", "3.9.1", "4.1.0", "4.4.0"):
        pin = "kafka-clients" if version == "4.4.0" else f"kafka-clients-{version}"
        (release,) = releases(pin)
        assert release.name == f"kafka-clients-{version}"
        found[version] = release.write(root / version)
    return found


def test_from_2_to_3_versions_and_defaults_changed_and_a_broken_file_is_named(
    folders: dict[str, Path],
) -> None:
    done = check(folders["2.8.2"], folders["3.9.1"])
    assert done.exit_code == status.BAD_DATA
    assert f"Error: {STRAY}: this is not JSON" in done.output
    assert done.output.count(".json") == 1
    (folders["2.8.2"] / STRAY).unlink()
    assert changes(check(folders["2.8.2"], folders["3.9.1"])) == {
        "default-changed": {"FetchRequest.ReplicaId", "DeleteTopicsRequest.Topics.Name"},
        "field-added": {"LeaderChangeMessage.Version"},
        "version-dropped": RENAMED_IN_3,
    }


def test_from_3_to_4_old_versions_were_dropped(folders: dict[str, Path]) -> None:
    found = changes(check(folders["3.9.1"], folders["4.1.0"]))
    assert list(found) == ["version-dropped"]
    dropped = found["version-dropped"]
    assert len(dropped - RENAMED_IN_4) == 49
    assert dropped > RENAMED_IN_4 | {"ProduceRequest", "FetchResponse"}
    # those of share groups were not stable
    assert not any(name.startswith("Share") for name in dropped)


def test_within_4_all_changes_are_compatible(folders: dict[str, Path]) -> None:
    assert changes(check(folders["4.1.0"], folders["4.4.0"])) == {}


def test_the_definitions_of_the_router_are_as_released() -> None:
    """Those of `router/kafka/messages`, which kafka-python lacks, but for their comments."""
    (released,) = releases("kafka-clients")
    own = folder_texts(OWN)
    assert own
    assert {name: layout(text) for name, text in own.items()} == {
        name: layout(released.texts[name]) for name in own
    }


def layout(text: str) -> Any:
    """Return a definition without what it says for people."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]

    def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in pairs if key != "about"}

    return json.loads("\n".join(lines), object_pairs_hook=plain)
