"""Changing what a topic keeps, and its partitions; what a store cannot do is greyed out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from router.backends import Capabilities
from router.backends.kafka.backend import KafkaBackend
from router.backends.memory import MemoryBackend
from router.backends.pulsar.admin import BrokerAdmin
from router.backends.pulsar.backend import NO_ADMIN, PulsarBackend
from router.backends.pulsar.rest import NO_POLICIES, RestAdmin
from router.backends.pulsar.routes import Routes
from router.errors import BadRequestError, NotAllowedError
from router.model import Subscription, TopicInfo, TopicName
from router.model.policies import Policies
from router.services.compaction import NOT_HERE
from router.web.console.masking import NOT_HERE as NO_PROPERTIES
from router.web.console.topic import read_size, read_time, write_size, write_time
from tests.unit.web.applications import HASHES, Site, header

TOPIC = TopicName.parse("t")
PAGE = "/console/topics/t"


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    made = sites()
    made.backend.create_topic(TopicInfo(TOPIC, 2, Policies(retention_ms=1500)), 5)
    return made


def change(site: Site, status: int = 200, **form: Any) -> dict[str, Any]:
    answer = site.client.post(f"{PAGE}/settings?format=json", data=form)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def policies(site: Site) -> tuple[int, int | None, int | None]:
    info = site.backend.describe_topic(TOPIC, 5).info
    return info.partitions, info.policies.retention_ms, info.policies.retention_bytes


@pytest.mark.parametrize("mask", ["$.card[", "card", "$.card = 4", "$." + "x" * 1_000])
def test_mask_that_cannot_be_read_is_refused(site: Site, mask: str) -> None:
    assert "mask: expected" in change(site, 400, mask=mask)["detail"]


def test_mask_of_a_store_that_keeps_no_properties_is_greyed_with_the_reason(site: Site) -> None:
    page = site.client.get(f"{PAGE}?tab=settings", headers={"Accept": "text/html"}).text
    assert NO_PROPERTIES in page
    assert change(site, 400, mask="$.card", confirm="yes")["code"] == "not-supported"


def test_change_is_told_before_it_is_made(site: Site) -> None:
    site.backend.subscribe(Subscription(TOPIC, "g"), 0, 5)
    form: dict[str, Any] = {"partitions": "4", "retention": "12h", "retention_size": "1G"}
    found = change(site, **form)
    assert [one.partition(":")[0] for one in found["changes"]] == [
        "Partitions",
        "Retention",
        "Retention by size, of each partition",
    ]
    assert "1500ms becomes 12h" in found["changes"][1]
    assert policies(site) == (2, 1500, None)
    assert change(site, **form, confirm="yes")["changed"] is True
    assert policies(site) == (4, 43_200_000, 1 << 30)
    site.post("/events/t", "\n".join("abcdefgh"))
    groups = site.backend.describe_topic(TOPIC, 5).subscriptions
    assert sum(one.backlog for one in groups) == 8


def test_form_without_script_confirms_on_a_page(site: Site) -> None:
    page = site.client.post(f"{PAGE}/settings", data={"partitions": "3"}).text
    assert "Partitions: 2 become 3." in page
    assert 'name="confirm" value="yes"' in page
    answer = site.client.post(f"{PAGE}/settings", data={"partitions": "3", "confirm": "yes"})
    assert answer.status_code == 303
    assert answer.headers["Location"].endswith("/console/topics/t?tab=settings")
    assert policies(site)[0] == 3


def test_nothing_is_changed_by_what_is_the_same(site: Site) -> None:
    found = change(site, partitions="2", retention="1500ms", confirm="yes")
    assert found["changes"] == []
    assert policies(site) == (2, 1500, None)


def test_store_that_does_not_compact_says_so(site: Site) -> None:
    page = site.client.get(f"{PAGE}?tab=settings").text
    assert 'disabled aria-describedby="no-compaction"' in page
    assert f'<button disabled title="{NOT_HERE}">Compact</button>' in page
    answer = site.client.post(f"{PAGE}/compact?format=json")
    assert (answer.status_code, answer.get_json()["code"]) == (400, "not-supported")
    assert change(site, 400, cleanup="compact", confirm="yes")["code"] == "not-supported"
    assert change(site, cleanup="delete", confirm="yes")["changes"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"partitions": "1"}, "partitions: expected 2 to 1000"),
        ({"partitions": "1001"}, "partitions: expected 2 to 1000"),
        ({"partitions": "x"}, "partitions: expected"),
        ({"retention": "soon"}, "retention: expected"),
        ({"retention": "0s"}, "retention: expected"),
        ({"retention": "9" * 400 + "d"}, "retention: expected"),
        ({"retention_size": "1T"}, "retention_size: expected"),
        ({"cleanup": "never"}, 'cleanup policy "never": expected delete, compact, compact,delete'),
    ],
)
def test_change_that_cannot_be_is_refused_whole(
    site: Site, form: dict[str, Any], says: str
) -> None:
    good = {"partitions": "4", "retention": "1d"}
    assert says in change(site, 400, **(good | form), confirm="yes")["detail"]
    assert policies(site) == (2, 1500, None)


def test_topic_without_partitions_gets_none(sites: Callable[..., Site]) -> None:
    site = sites()
    site.backend.create_topic(TopicInfo(TOPIC), 5)
    found = site.client.get(f"{PAGE}?tab=settings&format=json").get_json()
    assert found["cannot"]["grow"] == "It was made without partitions, and gets none."
    assert change(site, 403, partitions="2", confirm="yes")["code"] == "not-allowed"


@pytest.mark.parametrize("text", ["default", "forever", "250ms", "90s", "5m", "12h", "7d"])
def test_times_are_written_as_they_are_read(text: str) -> None:
    assert write_time(read_time("r", text)) == text


@pytest.mark.parametrize("text", ["default", "forever", "1000", "64K", "5M", "1G"])
def test_sizes_are_written_as_they_are_read(text: str) -> None:
    assert write_size(read_size("r", text)) == text


def test_size_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequestError):
        read_size("r", "-1")


def test_topic_is_created_with_a_retention(site: Site) -> None:
    form = {"name": "u", "partitions": "3", "retention": "7d"}
    found = site.client.post("/console/topics?format=json", data=form).get_json()
    info = site.backend.describe_topic(TopicName.parse("u"), 5).info
    assert (info.partitions, info.policies.retention_ms) == (3, 7 * 86_400_000)
    assert '"retentionMs":604800000' in found["commands"][0]
    tab = site.client.get("/console/topics/u?tab=settings&format=json").get_json()
    assert found["commands"][0] in tab["commands"]
    [row] = site.client.get("/console/topics?q=u&format=json").get_json()["topics"]
    assert (row["retention"], row["partitions"]) == ("7d", 3)


def of_kafka() -> Capabilities:
    return KafkaBackend.capabilities(object.__new__(KafkaBackend), 5)


def of_service(url: str, *, ours: bool) -> Capabilities:
    connection = SimpleNamespace(ours=ours)
    link = SimpleNamespace(connection=lambda deadline: connection)
    routes = cast("Routes", SimpleNamespace(service=link))
    rest = RestAdmin(url, routes) if url else None
    return PulsarBackend(routes, rest, lambda: 0).capabilities(5)


@pytest.mark.parametrize(
    ("found", "cannot"),
    [
        (lambda: MemoryBackend().capabilities(5), set()),
        (lambda: BrokerAdmin.capabilities(object.__new__(BrokerAdmin), 5), set()),
        (lambda: of_service("", ours=True), set()),
        (lambda: RestAdmin.capabilities(object.__new__(RestAdmin), 5), {"policies", "retention"}),
        (lambda: of_service("http://127.0.0.1:1", ours=False), {"policies", "retention"}),
        (
            lambda: of_service("", ours=False),
            {"topics", "describe", "policies", "retention", "grow"},
        ),
        (of_kafka, {"retention", "grow"}),
    ],
)
def test_store_says_what_it_cannot_do(found: Callable[[], Capabilities], cannot: set[str]) -> None:
    able = found()
    names = ("topics", "describe", "policies", "retention", "grow")
    assert {name for name in names if getattr(able, name)} == cannot


@pytest.mark.parametrize(
    ("able", "page", "reasons"),
    [
        (Capabilities(grow="no growth"), f"{PAGE}?tab=settings", {"no-growth"}),
        (Capabilities(retention=NO_POLICIES), f"{PAGE}?tab=settings", {"no-retention"}),
        (Capabilities(policies=NO_POLICIES), "/console/topics", {"no-retention"}),
    ],
)
def test_what_a_store_cannot_do_is_greyed_out_with_the_reason(
    site: Site, monkeypatch: pytest.MonkeyPatch, able: Capabilities, page: str, reasons: set[str]
) -> None:
    monkeypatch.setattr(site.backend, "capabilities", lambda timeout: able)
    text = site.client.get(page).text
    for reason in reasons:
        assert f'disabled aria-describedby="{reason}"' in text
        assert (
            f'<p id="{reason}" class="quiet">{able.grow or able.retention or able.policies}<'
            in text
        )


def test_store_without_administration_shows_a_list_without_topics(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = Capabilities(NO_ADMIN, NO_ADMIN, NO_ADMIN, NO_ADMIN, NO_ADMIN)
    monkeypatch.setattr(site.backend, "capabilities", lambda timeout: able)

    def refused(timeout: float) -> None:
        raise NotAllowedError(NO_ADMIN)

    monkeypatch.setattr(site.backend, "list_topics", refused)
    page = site.client.get("/console/topics")
    assert page.status_code == 200
    assert 'data-dialog="create" disabled title="This needs' in page.text


@pytest.mark.slow
def test_rights_are_those_of_the_administration(sites: Callable[..., Site], tmp_path: Path) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    users.write_text("".join(f"{name}:{HASHES['bcrypt']}\n" for name in ("boss", "writer")))
    rules.write_text("boss t manage\nwriter t publish,subscribe\n")
    site = sites(auth_users=str(users), auth_permissions=str(rules))
    site.backend.create_topic(TopicInfo(TOPIC, 2), 5)
    form = {"partitions": "4", "confirm": "yes"}
    for name, status in (("writer", 403), ("boss", 303)):
        known = {"Authorization": header(name, "secret")}
        assert site.client.post(f"{PAGE}/settings", data=form, headers=known).status_code == status
    known = {"Authorization": header("writer", "secret")}
    found = site.client.get(f"{PAGE}?tab=settings&format=json", headers=known).get_json()
    assert found["cannot"]["grow"] == "You may not manage it."
