"""JetStream over HTTP beside NATS on one broker: the form `v1` is NATS's, the seed's is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.nats.api_client import ApiClient
from tests.nats.conftest import NatsStack
from tests.nats.schemas import faults
from tests.system.traffic import ask

pytestmark = pytest.mark.slow

STREAM = {"name": "BOTH", "subjects": ["both.*"], "max_msgs": 100, "metadata": {"a": "b"}}
CONSUMER = {"stream_name": "BOTH", "config": {"durable_name": "c", "ack_policy": "explicit"}}
CALLS: tuple[tuple[str, object], ...] = (
    ("STREAM.CREATE.BOTH", STREAM),
    ("STREAM.CREATE.BOTH", {**STREAM, "max_msgs": 5}),
    ("STREAM.CREATE.BOTH", {"name": "OTHER"}),
    ("STREAM.CREATE.LAPS", {"name": "LAPS", "subjects": ["both.x"]}),
    ("STREAM.CREATE.BAD", {"name": "BAD", "retention": "never"}),
    ("STREAM.CREATE.BAD", {"name": "BAD", "num_replicas": 3}),
    ("STREAM.UPDATE.BOTH", STREAM),
    ("STREAM.INFO.BOTH", None),
    ("STREAM.INFO.BOTH", {"subjects_filter": ">"}),
    ("STREAM.INFO.absent", None),
    ("STREAM.NAMES", {"subject": "both.x"}),
    ("STREAM.LIST", {"subject": "both.x"}),
    ("STREAM.LIST", {"offset": 1_000}),
    ("STREAM.MSG.GET.BOTH", {"seq": 1}),
    ("STREAM.MSG.GET.BOTH", {"seq": 99}),
    ("STREAM.MSG.GET.BOTH", {}),
    ("CONSUMER.CREATE.BOTH.c", CONSUMER),
    ("CONSUMER.INFO.BOTH.c", None),
    ("CONSUMER.INFO.BOTH.absent", None),
    ("CONSUMER.NAMES.BOTH", None),
    ("CONSUMER.LIST.BOTH", None),
    ("CONSUMER.LIST.absent", None),
    ("STREAM.MSG.DELETE.BOTH", {"seq": 99}),
)


@pytest.fixture(scope="module")
def nats(nats_stack: NatsStack) -> Iterator[ApiClient]:
    with ApiClient(nats_stack.nats) as client:
        client.call("STREAM.CREATE.BOTH", STREAM)
        assert (
            post(nats_stack, "/jetstream/publish/both.x", b"first") == "+OK stream=BOTH&sequence=1"
        )
        yield client
        client.call("STREAM.DELETE.BOTH")


def post(stack: NatsStack, path: str, body: bytes) -> str:
    return ask(stack, "POST", path, body).body.decode()


def over_http(stack: NatsStack, subject: str, body: object, form: str = "") -> Any:
    sent = b"" if body is None else json.dumps(body).encode()
    return json.loads(post(stack, f"/jetstream/api/{subject}{form}", sent))


def without_times(found: Any) -> Any:
    """Return JSON without the time of its answer."""
    if isinstance(found, list):
        return [without_times(one) for one in found]
    if isinstance(found, dict):
        return {name: without_times(one) for name, one in found.items() if name != "ts"}
    return found


@pytest.mark.parametrize(("subject", "body"), CALLS)
def test_the_form_v1_is_what_nats_answers(
    nats_stack: NatsStack, nats: ApiClient, subject: str, body: object
) -> None:
    by_nats, by_http = nats.call(subject, body), over_http(nats_stack, subject, body, "?form=v1")
    assert without_times(by_http) == without_times(by_nats)
    names_error = "error" in by_http and by_http["type"].endswith("consumer_names_response")
    assert names_error or not faults(by_http)


@pytest.mark.parametrize(("subject", "body"), CALLS)
def test_the_seed_s_form_shares_nothing_with_it_but_content(
    nats_stack: NatsStack, nats: ApiClient, subject: str, body: object
) -> None:
    v1, seed = nats.call(subject, body), over_http(nats_stack, subject, body)
    assert seed["type"] + "_response" == v1["type"]
    assert "time" in seed
    assert not {"ts", "did_create"} & seed.keys()
    assert ("error" in seed) == ("error" in v1)
    if "error" in seed:
        assert list(seed["error"]) == ["message", "code", "kind"]
        assert seed["error"]["code"] == v1["error"]["err_code"]
        return
    for name in ("config", "state"):
        if name in seed:
            assert seed[name].items() <= {**v1[name], "metadata": {"a": "b"}}.items()


def test_acknowledgements_of_publishes_are_those_of_nats(
    nats_stack: NatsStack, nats: ApiClient
) -> None:
    del nats
    made = json.loads(post(nats_stack, "/jetstream/publish/both.y?form=v1", b"second"))
    assert made["stream"] == "BOTH"
    assert not faults(made)


def test_what_http_fetched_is_acknowledged_for_nats(nats_stack: NatsStack, nats: ApiClient) -> None:
    nats.call("CONSUMER.CREATE.BOTH.c", CONSUMER)
    answer = json.loads(post(nats_stack, "/jetstream/fetch/BOTH/c?batch=1", b""))
    (message,) = answer["messages"]
    assert nats.call("CONSUMER.INFO.BOTH.c")["num_ack_pending"] == 1
    assert post(nats_stack, "/jetstream/ack", message["token"].encode()) == "+OK"
    found = nats.call("CONSUMER.INFO.BOTH.c")
    assert (found["num_ack_pending"], found["ack_floor"]["stream_seq"]) == (0, message["sequence"])
