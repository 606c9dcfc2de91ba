"""Owners and access lists of topics over HTTP, and whether they count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.errors import SettingError
from tests.processes import wait_until
from tests.unit.web.applications import HASHES, Site, header
from tests.unit.web.signing import Signer, signature

Sites = Callable[..., Site]
SIDES = ["producers", "consumers"]


class Owned:
    """A site with a topic `t` of one key, and another key."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.owner, self.other = Signer(site.client), Signer(site.client)
        body = {"topicName": "t"}
        site.client.post("/topics/create", json=body, headers=self.owner.headers())

    def told(self, method: str, path: str, who: Signer | None = None, **more: Any) -> Any:
        """Return status and mrstatus of an answer; mrstatus 0 where it is none of ours."""
        headers = who.headers() if who else {}
        answer = self.site.client.open(path, method=method, headers=headers, **more)
        body = answer.get_json() if answer.is_json else {}
        return answer.status_code, body.get("mrstatus", 0) if isinstance(body, dict) else 0

    def users(self, side: str) -> list[str]:
        """Return who is on a list."""
        shown = self.site.client.get(f"/topics/t/{side}").get_json()
        assert shown["enabled"] is True
        details = self.site.client.get("/topics/t").get_json()
        assert details["readerAcl" if side == "consumers" else "writerAcl"] == shown
        users: list[str] = shown["users"]
        return users

    def list_(self, method: str, side: str, who: Signer | None) -> tuple[int, int]:
        """Have somebody put the other key on a list or take it off."""
        found: tuple[int, int] = self.told(
            method, f"/topics/t/{side}/{self.other.key}", who, json={}
        )
        return found


@pytest.fixture
def owned(sites: Sites) -> Owned:
    return Owned(sites(acl_enforce="true"))


def test_topic_with_an_owner_admits_the_owner_and_who_is_listed(owned: Owned) -> None:
    for who in (None, owned.other):
        assert owned.told("POST", "/events/t", who, data="x") == (403, 5009)
        assert owned.told("GET", "/events/t/g/c?timeout=0", who) == (403, 5008)
    assert owned.told("GET", "/events/t/g/c?timeout=0", owned.owner) == (200, 0)
    assert owned.told("POST", "/events/t", owned.owner, data="x") == (200, 0)
    assert owned.list_("PUT", "producers", owned.owner) == (200, 0)
    assert owned.users("producers") == [owned.other.key]
    assert owned.users("consumers") == []
    assert owned.told("POST", "/events/t", owned.other, data="x") == (200, 0)
    assert owned.told("POST", "/events/transaction/t", owned.other, data="x") == (200, 0)
    assert owned.told("GET", "/events/t/g/c?timeout=0", owned.other) == (403, 5008)
    assert owned.list_("PUT", "consumers", owned.owner) == (200, 0)
    assert owned.told("GET", "/events/t/g/c?timeout=0", owned.other) == (200, 0)
    for side in SIDES:
        assert owned.list_("DELETE", side, owned.owner) == (200, 0)
        assert owned.users(side) == []
    assert owned.told("POST", "/events/t", owned.other, data="x") == (403, 5009)
    assert owned.told("POST", "/events/transaction/t", owned.other, data="x") == (403, 5009)


@pytest.mark.parametrize("path", ["/topics/t/latest", "/topics/t/latest/key"])
def test_newest_values_are_for_those_who_may_consume(owned: Owned, path: str) -> None:
    for who in (None, owned.other):
        assert owned.told("GET", path, who)[0] == 403
    # The memory backend has no such values, and says so to those who may read.
    assert owned.told("GET", path, owned.owner)[0] == 400
    assert owned.list_("PUT", "producers", owned.owner) == (200, 0)
    assert owned.told("GET", path, owned.other)[0] == 403
    assert owned.list_("PUT", "consumers", owned.owner) == (200, 0)
    assert owned.told("GET", path, owned.other)[0] == 400


def test_refusal_names_who_was_refused(owned: Owned) -> None:
    refused = owned.site.client.post("/events/t", data="x").get_json()
    assert refused["message"] == (
        "Error while publishing data to topic. Access denied for (no user): the topic has an owner,"
        " and an anonymous client is neither the owner nor on its list of producers."
    )
    headers = owned.other.headers()
    refused = owned.site.client.get("/events/t/g/c", headers=headers).get_json()
    assert refused["message"] == (
        f"Error while reading data from topic. Access denied for {owned.other.key}: the topic has"
        f" an owner, and {owned.other.key} is neither the owner nor on its list of consumers."
    )


def test_topic_without_an_owner_is_everybodys(owned: Owned) -> None:
    site = owned.site
    assert site.post("/events/free", "x").status_code == 200
    site.client.post("/topics/create", json={"topicName": "made"})
    assert site.poll("/events/free/g/c").get_json() == ["x"]
    assert site.poll("/events/made/g/c").status_code == 200
    assert site.client.delete("/topics/free").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("enforce", ["true", "false"])
@pytest.mark.parametrize("who", ["other", "nobody"])
def test_lists_are_the_owners_whether_they_count_or_not(
    sites: Sites, enforce: str, who: str
) -> None:
    owned = Owned(sites(acl_enforce=enforce))
    asking = owned.other if who == "other" else None
    assert owned.list_("PUT", "producers", asking) == (403, 6003)
    assert owned.list_("DELETE", "producers", asking) == (403, 6003)
    assert owned.list_("PUT", "consumers", asking) == (403, 6009)
    assert owned.list_("DELETE", "consumers", asking) == (403, 6003)
    assert owned.users("producers") == owned.users("consumers") == []


@pytest.mark.parametrize("settings", [{}, {"acl_enforce": "false"}])
def test_lists_are_kept_while_they_do_not_count(sites: Sites, settings: dict[str, str]) -> None:
    owned = Owned(sites(**settings))
    for side in SIDES:
        assert owned.list_("PUT", side, owned.owner) == (200, 0)
        assert owned.users(side) == [owned.other.key]
    assert owned.told("POST", "/events/t", None, data="x") == (200, 0)
    assert owned.told("GET", "/events/t/g/c?timeout=0", None) == (200, 0)
    assert owned.told("DELETE", "/topics/t", None) == (200, 0)


def test_lists_of_unknown_topics_are_refused_as_in_the_original(owned: Owned) -> None:
    assert owned.told("GET", "/topics/absent", None) == (404, 6002)
    assert owned.told("GET", "/topics/absent/producers", None) == (404, 6005)
    assert owned.told("GET", "/topics/absent/consumers", None) == (403, 6006)
    for side in SIDES:
        path = f"/topics/absent/{side}/k"
        assert owned.told("PUT", path, owned.owner, json={}) == (404, 3001)
        assert owned.told("DELETE", path, owned.owner) == (404, 3001)
    assert owned.told("PUT", "/topics/t/producers/a%2Fb", owned.owner)[0] in {400, 404}


def test_only_the_owner_deletes_a_topic(owned: Owned) -> None:
    owned.list_("PUT", "producers", owned.owner)
    for who in (None, owned.other):
        assert owned.told("DELETE", "/topics/t", who) == (403, 4002)
    assert owned.told("DELETE", "/topics/t", owned.owner) == (200, 0)


def test_new_topic_of_the_same_name_inherits_nothing(owned: Owned) -> None:
    owned.list_("PUT", "producers", owned.owner)
    owned.told("DELETE", "/topics/t", owned.owner)
    assert owned.told("POST", "/events/t", None, data="x") == (200, 0)
    assert owned.site.client.get("/topics/t").get_json()["owner"] == ""
    assert owned.users("producers") == []
    owned.told("DELETE", "/topics/t", None)
    body = {"topicName": "t"}
    owned.told("POST", "/topics/create", owned.other, json=body)
    assert owned.site.client.get("/topics/t").get_json()["owner"] == owned.other.key


def test_topic_deleted_behind_the_routers_back_leaves_nothing_to_the_next(owned: Owned) -> None:
    site = owned.site
    [info] = site.backend.list_topics(1)
    site.backend.delete_topic(info.topic, 1)
    assert site.node.registry.list("topic", 1) != []
    # Whoever publishes next makes a topic that nobody asked for by name.
    wait_until(lambda: owned.told("POST", "/events/t", owned.owner, data="x")[0] == 200)
    wait_until(lambda: owned.told("POST", "/events/t", None, data="x")[0] == 200)
    assert site.node.registry.list("topic", 1) == []


def test_description_survives_changes_of_the_lists(owned: Owned) -> None:
    body = {"topicName": "d", "topicDescription": "what for", "transactionEnabled": True}
    made = owned.told("POST", "/topics/create", owned.owner, json=body)
    assert made == (200, 0)
    owned.told("PUT", "/topics/d/producers/k", owned.owner, json={})
    shown = owned.site.client.get("/topics/d").get_json()
    assert (shown["description"], shown["transactionEnabled"]) == ("what for", True)
    assert shown["writerAcl"] == {"enabled": True, "users": ["k"]}


def test_create_that_is_refused_leaves_no_owner(owned: Owned) -> None:
    body = {"topicName": "x", "partitionCount": 5000}
    assert owned.told("POST", "/topics/create", owned.owner, json=body) == (400, 5005)
    body = {"topicName": "x", "topicDescription": "x" * 5000}
    assert owned.told("POST", "/topics/create", owned.owner, json=body) == (400, 5005)
    body = {"topicName": "t", "partitionCount": 7}
    assert owned.told("POST", "/topics/create", owned.other, json=body) == (409, 6003)
    assert owned.site.client.get("/topics/t").get_json()["owner"] == owned.owner.key
    assert len(owned.site.node.registry.list("topic", 1)) == 1


@pytest.mark.slow
def test_lists_count_at_every_worker_within_seconds(owned: Owned) -> None:
    other = owned.site.worker()

    def publish() -> int:
        return other.post("/events/t", data="x", headers=owned.other.headers()).status_code

    assert publish() == 403
    owned.list_("PUT", "producers", owned.owner)
    wait_until(lambda: publish() == 200)
    owned.list_("DELETE", "producers", owned.owner)
    wait_until(lambda: publish() == 403)


def test_admin_key_may_do_everything(sites: Sites) -> None:
    owned = Owned(sites(acl_enforce="true", auth_admin_secret="very secret"))
    admin = signature("admin", "very secret")
    client = owned.site.client
    assert client.post("/events/t", data="x", headers=admin).status_code == 200
    path = f"/topics/t/producers/{owned.other.key}"
    assert client.put(path, json={}, headers=admin).status_code == 200
    assert client.delete("/topics/t", headers=admin).status_code == 200


def users(folder: Path, *names: str) -> str:
    file = folder / "users"
    file.write_text("".join(f"{name}:{HASHES['argon2']}\n" for name in names))
    return str(file)


def as_(name: str) -> dict[str, str]:
    return {"Authorization": header(name, "secret")}


def test_lists_count_by_themselves_where_there_are_users(sites: Sites, tmp_path: Path) -> None:
    site = sites(auth_users=users(tmp_path, "ann", "bob"))
    site.client.post("/topics/create", json={"topicName": "t"}, headers=as_("ann"))
    assert site.client.get("/topics/t", headers=as_("bob")).get_json()["owner"] == "ann"
    assert site.client.post("/events/t", data="x", headers=as_("bob")).status_code == 403
    site.client.put("/topics/t/producers/bob", json={}, headers=as_("ann"))
    assert site.client.post("/events/t", data="x", headers=as_("bob")).status_code == 200
    assert site.client.post("/events/u", data="x", headers=as_("bob")).status_code == 200


def test_both_owner_and_file_of_permissions_must_agree(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "rights").write_text(
        "ann t publish manage\nbob t publish\nann u publish\nops * manage\n"
    )
    site = sites(
        auth_users=users(tmp_path, "ann", "bob", "cid", "ops"),
        auth_permissions=str(tmp_path / "rights"),
    )
    site.client.post("/topics/create", json={"topicName": "t"}, headers=as_("ann"))

    def publish(name: str) -> tuple[int, int]:
        answer = site.client.post("/events/t", data="x", headers=as_(name))
        return answer.status_code, answer.get_json().get("mrstatus", 0)

    assert [publish(name) for name in ("ann", "bob", "cid")] == [(200, 0), (403, 5009), (403, 4002)]
    for name in ("bob", "cid"):
        path = f"/topics/t/producers/{name}"
        assert site.client.put(path, json={}, headers=as_("bob")).status_code == 403
        assert site.client.put(path, json={}, headers=as_("ann")).status_code == 200
    assert [publish(name) for name in ("ann", "bob", "cid")] == [(200, 0), (200, 0), (403, 4002)]
    # Who manages everything may change lists of topics that are not theirs, but not use them.
    assert site.client.delete("/topics/t/producers/cid", headers=as_("ops")).status_code == 200
    assert publish("ops") == (403, 4002)
    assert site.client.delete("/topics/t", headers=as_("ops")).status_code == 200


def test_user_who_may_not_change_lists_is_refused_in_the_words_of_lists(
    sites: Sites, tmp_path: Path
) -> None:
    (tmp_path / "rights").write_text("bob t publish\n")
    files = {"auth_users": users(tmp_path, "bob"), "auth_permissions": str(tmp_path / "rights")}
    site = sites(**files)
    for side in SIDES:
        for method in ("PUT", "DELETE"):
            answer = site.client.open(f"/topics/t/{side}/k", method=method, headers=as_("bob"))
            assert answer.status_code == 403
            assert answer.get_json()["message"].startswith(
                "Access denied for bob: no right to change the access lists of t"
            )


AAF = """
ann org.onap.dmaap.mr.topic|:topic.org.onap.dmaap.mr.*|pub
bob org.onap.dmaap.mr.topic|:topic.org.onap.dmaap.mr.*|sub
cid org.onap.dmaap.mr.topic|:topic.org.onap.dmaap.mr.t|view
dan org.onap.dmaap.mr|create
dan org.onap.dmaap.mr|destroy
"""
T = "org.onap.dmaap.mr.t"


@pytest.mark.slow
def test_denials_of_aaf_are_the_originals(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "aaf").write_text(AAF)
    site = sites(
        auth_users=users(tmp_path, "ann", "bob", "cid", "dan", "eve"),
        auth_aaf=str(tmp_path / "aaf"),
        acl_enforce="false",
    )

    def told(name: str, method: str, path: str, **more: Any) -> tuple[int, int]:
        answer = site.client.open(path, method=method, headers=as_(name), **more)
        return answer.status_code, (answer.get_json() or {}).get("mrstatus", 0)

    body = {"topicName": T}
    assert told("ann", "POST", "/topics/create", json=body) == (403, 4002)
    assert told("dan", "POST", "/topics/create", json=body) == (200, 0)
    assert told("ann", "POST", f"/events/{T}", data="x") == (200, 0)
    assert told("bob", "POST", f"/events/{T}", data="x") == (403, 5009)
    assert told("bob", "GET", f"/events/{T}/g/c?timeout=0") == (200, 0)
    assert told("ann", "GET", f"/events/{T}/g/c?timeout=0") == (403, 5008)
    assert told("eve", "GET", f"/topics/{T}") == (403, 4002)
    for name, names in (("cid", [T]), ("ann", [T]), ("eve", [])):
        assert site.client.get("/topics", headers=as_(name)).get_json() == {"topics": names}
    assert told("cid", "DELETE", f"/topics/{T}") == (403, 4002)
    denied = site.client.post(f"/events/{T}", data="x", headers=as_("bob")).get_json()
    assert denied["message"] == (
        "Error while publishing data to topic. Access Denied."
        f" User does not have permission to perform publish operation on Topic: {T}"
    )


def test_one_file_of_permissions_is_enough(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "aaf").write_text(AAF)
    (tmp_path / "rights").write_text("")
    own = users(tmp_path, "ann")
    aaf, rights = str(tmp_path / "aaf"), str(tmp_path / "rights")
    with pytest.raises(SettingError, match=r"auth\.permissions and auth\.aaf"):
        sites(auth_users=own, auth_aaf=aaf, auth_permissions=rights)
    with pytest.raises(SettingError, match=r"auth\.aaf"):
        sites(auth_aaf=aaf)


@pytest.mark.parametrize("name", ["t-partition-0", "t-partition-17", "t-partition-0-partition-1"])
def test_name_of_a_partition_is_no_way_around_the_owner(owned: Owned, name: str) -> None:
    # The memory backend has a topic of that name then, others the partition.
    for who in (None, owned.other):
        assert owned.told("POST", f"/events/{name}", who, data="x") == (403, 5009)
        assert owned.told("GET", f"/events/{name}/g/c?timeout=0", who) == (403, 5008)
        assert owned.told("DELETE", f"/topics/{name}", who) == (403, 4002)
        assert owned.told("POST", f"/topics/{name}/groups/g/reset?to=latest", who) == (403, 4002)
    assert owned.told("POST", f"/events/{name}", owned.owner, data="x") == (200, 0)
    assert owned.told("POST", "/events/other-partition-0", owned.other, data="x") == (200, 0)


def test_name_of_a_partition_needs_the_permission_on_its_topic(
    sites: Sites, tmp_path: Path
) -> None:
    users, permissions = tmp_path / "users", tmp_path / "permissions"
    users.write_text(f"bob:{HASHES['argon2']}\n")
    permissions.write_text("bob orders-* publish\nbob mine publish\nbob mine-* publish\n")
    site = sites(auth_users=str(users), auth_permissions=str(permissions))
    sent = {"Authorization": header("bob", "secret")}
    assert site.post("/events/orders-partition-0", "x", headers=sent).status_code == 403
    assert site.post("/events/mine-partition-0", "x", headers=sent).status_code == 200
