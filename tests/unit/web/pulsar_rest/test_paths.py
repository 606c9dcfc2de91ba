"""Paths: PIP 64's three forms, and DMaaP's, which stay what they are."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from werkzeug.exceptions import HTTPException

from router.model import TopicName
from router.web.front import DIRECT, _direct_rule
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.conftest import make_topic
from tests.unit.web.pulsar_rest.rest import Rest


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("persistent://public/default/x", "/topics/public/default/x"),
        ("persistent://public/default/y", "/topics/persistent/public/default/y"),
        ("non-persistent://public/default/x", "/topics/non-persistent/public/default/x"),
        ("persistent://acme/sales.eu/x-1", "/topics/acme/sales.eu/x-1"),
        ("persistent://acme/producers/x", "/topics/persistent/acme/producers/x"),
        ("persistent://persistent/b/c", "/topics/persistent/b/c"),
        ("persistent://acme/create/listAll", "/topics/acme/create/listAll"),
    ],
)
def test_path_names_a_topic(site: Site, name: str, path: str) -> None:
    topic = TopicName.parse(name)
    if topic not in [info.topic for info in site.backend.list_topics(1)]:
        make_topic(site, name)
    rest = Rest(site.client, topic.local, path.removesuffix(topic.local))
    identity = rest.texts("a")[0]
    assert rest.values(f"start={identity}") == ["a"]
    consumer = rest.consumer()
    assert consumer.base_uri.startswith(f"http://localhost{path}/subscription/s/consumer/")
    assert consumer.values()[0] == "a"
    assert consumer.delete().status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        ("GET", "/topics", "topics.names"),
        ("GET", "/topics/listAll", "topics.list_all"),
        ("POST", "/topics/create", "topics.create"),
        ("GET", "/topics/persistent", "topics.describe"),
        ("DELETE", "/topics/t", "topics.delete"),
        ("GET", "/topics/t/producers", "acls.producers"),
        ("PUT", "/topics/t/producers/k", "acls.permit_producer"),
        ("DELETE", "/topics/persistent/producers/k", "acls.revoke_producer"),
        ("GET", "/topics/t/consumers", "acls.consumers"),
        ("PUT", "/topics/t/consumers/k", "acls.permit_consumer"),
        ("DELETE", "/topics/t/consumers/k", "acls.revoke_consumer"),
        ("GET", "/topics/t/groups", "groups.listed"),
        ("POST", "/topics/t/groups/g/reset", "groups.reset"),
        ("POST", "/topics/persistent/groups/g/reset", "groups.reset"),
        ("DELETE", "/topics/t/groups/g", "groups.delete"),
    ],
)
def test_routes_of_dmaap_are_theirs(site: Site, method: str, path: str, endpoint: str) -> None:
    found, _ = site.app.url_map.bind("localhost").match(path, method)
    assert found == endpoint


PARTS = ["domain", "tenant", "namespace", "topic", "subscription", "consumer"]
SEGMENTS = st.sampled_from(
    [
        *("persistent", "non-persistent", "groups", "producers", "consumers", "a.b", "x"),
        *("subscription/x/cursor", "subscription/x/consumer/y/messages", "subscription", "cursor"),
    ]
)


@example(segments=["groups", "x", "x"], method="POST")
@example(segments=["x", "producers", "x"], method="POST")
@example(segments=["persistent", "x", "groups", "x"], method="POST")
@example(segments=["persistent", "a.b", "x"], method="POST")
@example(segments=["x", "x", "x", "subscription/x/consumer/y/messages"], method="GET")
@given(segments=st.lists(SEGMENTS, min_size=1, max_size=6), method=st.sampled_from(["GET", "POST"]))
def test_path_that_is_answered_directly_has_the_rule_and_the_names_that_flask_finds(
    shared: Site, segments: list[str], method: str
) -> None:
    path = f"/topics/{'/'.join(segments)}"
    rule, names = _direct_rule(path)
    try:
        found, arguments = shared.app.url_map.bind("localhost").match(
            path, method, return_rule=True
        )
    except HTTPException:
        assert rule[0] != method
        return
    if (method, found.rule) in shared.app.extensions[DIRECT]:
        assert rule == (method, found.rule)
        assert names == tuple(arguments[part] for part in PARTS if part in arguments)
    else:
        assert rule[0] != method


@pytest.mark.parametrize(
    "path", ["/topics/t/producers/k", "/topics/t/consumers/k", "/topics/t/groups/g"]
)
def test_wrong_methods_of_dmaap_are_refused_as_before(site: Site, path: str) -> None:
    answer = site.client.post(path, data="{}")
    assert answer.status_code == 405
    assert "mrErrorCode" in answer.get_json()
