"""The calls of the table, and the policies of topics, over a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest
from flask.testing import FlaskClient

from router.web.access import Right
from router.web.pulsar_admin.answers import CALLS
from router.web.pulsar_admin.calls import NOT_SERVED, not_served
from router.web.pulsar_admin.policies import POLICIES
from router.web.pulsar_admin.served import ADMINS, AdminCall
from tests.processes import wait_until
from tests.unit.web.applications import HASHES, header
from tests.unit.web.pulsar_admin.conftest import Site
from tests.unit.web.pulsar_admin.test_topics import BASE, published, reason, told

SHARED = pulsar.ConsumerType.Shared
SEGMENTS = {
    "cluster": "standalone",
    "broker": "b",
    "timestamp": "0",
    "subscription": "s",
    "domain": "persistent",
}


def name_of(topic: str) -> str:
    return topic.replace("/", "://", 1)


def backlog(site: FlaskClient, topic: str, subscription: str = "s") -> int:
    stats = told(site.get(f"{BASE}/{topic}/stats"))
    found: int = stats["subscriptions"][subscription]["msgBacklog"]
    return found


@pytest.fixture
def anna(sites: Site, tmp_path: Path) -> Callable[[str, str], Any]:
    """Makes requests of a user who may see and read all topics, and manages none."""
    users, permissions = tmp_path / "users", tmp_path / "permissions"
    users.write_text(f"ops:{HASHES['argon2']}\nanna:{HASHES['argon2']}\n")
    permissions.write_text("ops * manage subscribe\nanna * subscribe\n")
    # Each test has an application of its own, which checks her password again.
    settings = {"auth__users": str(users), "auth__permissions": str(permissions)}
    site = sites(auth__attempts_per_minute="0", **settings)

    def ask(method: str, path: str) -> Any:
        return site.open(path, method=method, headers={"Authorization": header("anna", "secret")})

    return ask


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_calls_are_for_those_who_may_make_them(
    anna: Callable[[str, str], Any], namespace: str, topic: str, call: AdminCall
) -> None:
    tenant, local = namespace.split("/")
    segments = SEGMENTS | {"tenant": tenant, "namespace": local, "topic": "t"}
    method, rule = call.route.split(" ")
    path = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: segments[found[1]], rule)
    status = anna(method, path).status_code
    assert (status == 403) == (call.who in {ADMINS, Right.MANAGE}), status
    assert status < 500


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/admin/v3/functions/public/default", "Functions"),
        ("/admin/v3/sinks/public/default", "connectors"),
        ("/admin/v3/packages/function/public/default", "packages"),
        ("/admin/v3/transactions/coordinators", "transactions"),
        ("/admin/v2/persistent/public/default/t/offload", "offloading"),
        ("/admin/v2/namespaces/public/default/subscriptionDispatchRate", "rates"),
        ("/admin/v2/namespaces/public/default/property/a/b", "properties"),
        ("/admin/v2/persistent/public/default/t/nothing-of-the-kind", "this call"),
    ],
)
def test_what_is_not_served_is_named(site: FlaskClient, path: str, what: str) -> None:
    assert what in reason(site.post(path), 405)


def test_no_words_of_a_refusal_are_out_of_reach() -> None:
    samples = (
        *("/admin/v3/functions/t/n", "/admin/v3/packages/function", "/admin/v3/transactions/x"),
        *("t/offload", "n/permissions/r", "n/persistence", "n/0x0_0x1/bundle"),
        *("n/dispatchRate", "namespaces/t/n/property/a", "brokers/configuration/a/b"),
        *("broker-stats/mbeans", "clusters/c/namespaceIsolationPolicies", "clusters/c"),
        *("resourcegroups/g", "t/subscriptionTypesEnabled", "t/maxMessageSize"),
        "t/delayedDelivery",
    )
    assert {not_served(sample) for sample in samples} == {words for _, words in NOT_SERVED}


@pytest.mark.parametrize("policy", [one for one in POLICIES if one.of_topic], ids=lambda p: p.name)
def test_topic_has_the_policy_of_its_namespace_unless_it_has_its_own(
    site: FlaskClient, namespace: str, topic: str, policy: Any
) -> None:
    quota = {"limitSize": 5, "policy": "consumer_backlog_eviction"}
    values: Any = {
        "retention": [{"retentionTimeInMinutes": n, "retentionSizeInMB": n} for n in (5, 6)],
        "quota": [quota, quota | {"limitSize": 6}],
        "deduplication": [False, True],
    }.get(policy.name, [5, 6])
    shown = policy.shown[0] if policy.shown else policy.of_topic
    at, of_namespace = f"{BASE}/{topic}/{policy.of_topic}", f"{BASE}/namespaces/{namespace}"

    def given(value: Any) -> dict[str, Any]:
        return {"query_string": {policy.parameter: value}} if policy.parameter else {"json": value}

    def found(*, applied: bool = False) -> Any:
        answer = site.get(f"{BASE}/{topic}/{shown}?applied={str(applied).lower()}")
        assert answer.status_code == 200
        return answer.json if answer.data else None

    none = found()
    assert not none
    assert policy.applied is None or found(applied=True) == policy.applied
    of_namespace_set = site.open(
        f"{of_namespace}/{policy.path}", method=policy.setter, json=values[0]
    )
    assert of_namespace_set.status_code == 204
    inherited = found(applied=True)
    assert (found(), inherited) == (
        none,
        site.get(f"{of_namespace}/{shown if policy.shown else policy.path}").json,
    )
    assert site.post(at, **given(values[1])).status_code == 204
    assert found() == found(applied=True) != inherited
    assert site.delete(at).status_code == 204
    assert (found(), found(applied=True)) == (none, inherited)


@pytest.mark.parametrize("bad", ["-1", "x", "99999999999", "1.5"])
def test_limit_that_is_none_is_refused(site: FlaskClient, topic: str, bad: str) -> None:
    reason(site.post(f"{BASE}/{topic}/maxConsumers", data=bad), 400)
    reason(site.post(f"{BASE}/{topic}/messageTTL?messageTTL={bad}"), 400)


def test_clients_beyond_a_limit_are_refused(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    name = name_of(topic)
    for limit, value in (("maxConsumersPerSubscription", 2), ("maxConsumers", 3)):
        assert site.post(f"{BASE}/{topic}/{limit}", json=value).status_code == 204
    held = [client.subscribe(name, "s", SHARED) for _ in range(2)]
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(name, "s", SHARED)
    held.append(client.subscribe(name, "other", SHARED))
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(name, "third", SHARED)
    assert site.post(f"{BASE}/{topic}/maxProducers", json=1).status_code == 204
    producer = client.create_producer(name)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(name)
    producer.close()
    client.create_producer(name).close()
    for consumer in held:
        consumer.close()


def test_truncated_topic_has_no_messages_and_its_subscriptions(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    site.put(f"{BASE}/{topic}/subscription/s")
    published(client, topic, b"a", b"b")
    assert backlog(site, topic) == 2
    assert site.delete(f"{BASE}/{topic}/truncate").status_code == 204
    stats = told(site.get(f"{BASE}/{topic}/stats"))
    assert (stats["msgInCounter"], backlog(site, topic)) == (0, 0)
    reason(site.get(f"{BASE}/{topic}/examinemessage?initialPosition=earliest"), 404)
    published(client, topic, b"c")
    assert site.get(f"{BASE}/{topic}/subscription/s/position/1").data == b"c"


def test_backlog_of_a_namespace_is_cleared_for_all_or_one(
    site: FlaskClient, namespace: str, topic: str, client: pulsar.Client
) -> None:
    other = f"persistent/{namespace}/u"
    site.put(f"{BASE}/{other}")
    for path, name in ((topic, "s"), (topic, "kept"), (other, "s")):
        site.put(f"{BASE}/{path}/subscription/{name}")
    for path in (topic, other):
        published(client, path, b"a")
    clear = f"{BASE}/namespaces/{namespace}/clearBacklog"
    assert site.post(f"{clear}/s").status_code == 204
    assert [backlog(site, topic), backlog(site, topic, "kept"), backlog(site, other)] == [0, 1, 0]
    reason(site.post(f"{clear}/none"), 404)
    assert site.post(clear).status_code == 204
    assert backlog(site, topic, "kept") == 0
    reason(site.post(f"{BASE}/namespaces/public/none/clearBacklog"), 404)


def test_message_id_is_found_by_time(site: FlaskClient, topic: str, client: pulsar.Client) -> None:
    assert told(site.get(f"{BASE}/{topic}/messageid/0"))["entryId"] == -1
    published(client, topic, b"a", b"b")
    assert told(site.get(f"{BASE}/{topic}/messageid/0"))["entryId"] == 0
    assert told(site.get(f"{BASE}/{topic}/messageid/{2**50}"))["entryId"] == 1
    reason(site.get(f"{BASE}/{topic}/messageid/tomorrow"), 400)


def test_backlog_is_analyzed(site: FlaskClient, topic: str, client: pulsar.Client) -> None:
    sub = f"{BASE}/{topic}/subscription/s"
    site.put(sub)
    assert told(site.post(f"{sub}/analyzeBacklog"))["entries"] == 0
    published(client, topic, b"a", b"b", b"c")
    site.post(f"{sub}/skip/1")
    found = told(site.post(f"{sub}/analyzeBacklog"))
    assert (found["entries"], found["messages"], found["aborted"]) == (2, 2, False)
    assert found["firstMessageId"].endswith(":1")
    assert found["lastMessageId"].endswith(":2")
    reason(site.post(f"{BASE}/{topic}/subscription/none/analyzeBacklog"), 404)


def test_properties_are_changed(site: FlaskClient, topic: str, client: pulsar.Client) -> None:
    at = f"{BASE}/{topic}/properties"
    site.put(at, json={"a": "1", "b": "2"})
    site.put(at, json={"b": "3"})
    site.delete(f"{at}?key=a")
    assert told(site.get(at)) == {"b": "3"}
    reason(site.put(at, json={"a": 1}), 400)
    name = name_of(topic)
    client.subscribe(name, "s", replicate_subscription_state_enabled=True).close()
    of_subscription = f"{BASE}/{topic}/subscription/s/properties"
    assert site.put(of_subscription, json={"x": "y"}).status_code == 204
    assert told(site.get(of_subscription)) == {"x": "y"}
    stats = told(site.get(f"{BASE}/{topic}/stats"))
    assert stats["subscriptions"]["s"]["isReplicated"] is True


def test_permissions_are_those_of_the_owner_and_the_lists(
    sites: Site, tmp_path: Path, namespace: str
) -> None:
    users, permissions = tmp_path / "users", tmp_path / "permissions"
    users.write_text(f"ops:{HASHES['argon2']}\n")
    permissions.write_text("ops * manage subscribe publish\n")
    # Each test has an application of its own, which checks her password again.
    settings = {"auth__users": str(users), "auth__permissions": str(permissions)}
    site = sites(auth__attempts_per_minute="0", **settings)
    as_ops = {"headers": {"Authorization": header("ops", "secret")}}
    path = f"{BASE}/persistent/{namespace}/{uuid4().hex}"
    assert site.put(path, **as_ops).status_code == 204
    assert told(site.get(f"{path}/permissions", **as_ops)) == {"ops": ["produce", "consume"]}


def test_configuration_shows_no_secrets(sites: Site) -> None:
    site = sites(auth__admin_secret="hidden-away")
    answer = site.get(f"{BASE}/brokers/configuration/runtime")
    assert told(answer)["clusterName"] == "standalone"
    assert b"hidden-away" not in answer.data


def test_statistics_tell_what_was_sent_and_how_fast(
    site: FlaskClient, topic: str, client: pulsar.Client
) -> None:
    name = name_of(topic)
    consumer = client.subscribe(name, "s", receiver_queue_size=2)
    producer = client.create_producer(name)
    for _ in range(20):
        producer.send(b"12345")
    for _ in range(10):
        consumer.acknowledge(consumer.receive(10_000))
    # What its queue has room for is on its way while a statistic is made.
    shown = f"{BASE}/{topic}/stats?getEarliestTimeInBacklog=true"
    wait_until(lambda: told(site.get(shown))["msgOutCounter"] == 12)
    stats = told(site.get(shown))
    group = stats["subscriptions"]["s"]
    (publisher,), (reader,) = stats["publishers"], group["consumers"]
    for level, fields in (
        (stats, ("msgRateIn", "msgThroughputIn", "backlogSize", "bytesOutCounter")),
        (publisher, ("msgRateIn", "msgThroughputIn", "averageMsgSize")),
        (reader, ("msgRateOut", "msgThroughputOut", "bytesOutCounter")),
        (group, ("msgRateOut", "msgThroughputOut", "backlogSize", "bytesOutCounter")),
    ):
        assert [field for field in fields if not level[field] > 0] == []
    assert stats["msgOutCounter"] == group["msgOutCounter"] == reader["msgOutCounter"] == 12
    assert group["earliestMsgPublishTimeInBacklog"] > 1_600_000_000_000
    assert stats["backlogSize"] <= stats["storageSize"]
    consumer.close()
    after = told(site.get(f"{BASE}/{topic}/stats"))
    assert after["msgOutCounter"] >= group["msgOutCounter"], "counters outlive the consumer"
    assert after["earliestMsgPublishTimeInBacklogs"] == 0, "nobody asked for it"
    producer.close()
