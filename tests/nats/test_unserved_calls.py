"""What of the JetStream API is not served, or cannot be: each call is refused in its own type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import unquote

import pytest

from router.wire.nats.jetstream.cluster_calls import CLUSTER_CALLS
from tests.broker.nats_raw import QUIET, RawNats
from tests.nats.api_client import ApiClient
from tests.nats.conftest import NatsStack
from tests.servers.nats import Nats
from tests.system.traffic import ask

pytestmark = pytest.mark.slow

SUBJECTS = [".".join((one.words, *(name.upper() for name in one.names))) for one in CLUSTER_CALLS]
BODIES = [b"", b'{"peer":"x"}', b"no JSON"]
# nats-server leaves what its system account may call without an answer.
OF_ACCOUNTS = [one for one in SUBJECTS if one.startswith(("STREAM.", "CONSUMER."))]
ID = {"Nats-Msg-Id": "1"}
UNPIN = ["CONSUMER.UNPIN.S.C", "CONSUMER.UNPIN.S.absent", "CONSUMER.UNPIN.absent.C"]


@pytest.fixture(scope="module")
def theirs(nats_server: Nats) -> Iterator[ApiClient]:
    with ApiClient(nats_server.address) as client:
        yield client


@pytest.fixture(scope="module")
def ours(nats_stack: NatsStack) -> Iterator[ApiClient]:
    with ApiClient(nats_stack.nats) as client:
        yield client


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_call_of_clusters_is_refused_in_its_own_type(
    nats_stack: NatsStack, ours: ApiClient, subject: str
) -> None:
    reply, *others = (ours.call(subject, body) for body in BODIES)
    assert others == [reply] * len(others)
    assert reply["error"]["err_code"] == 10010
    found = ask(nats_stack, "POST", f"/jetstream/api/{subject}?form=v1", b"{}")
    assert (found.status, json.loads(found.body)) == (503, reply)
    seed = json.loads(ask(nats_stack, "POST", f"/jetstream/api/{subject}", b"{}").body)
    assert seed["type"] + "_response" == reply["type"]
    assert seed["error"]["code"] == 10010


@pytest.mark.parametrize("subject", OF_ACCOUNTS)
def test_it_is_refused_as_nats_server_without_a_cluster_does(
    theirs: ApiClient, ours: ApiClient, subject: str
) -> None:
    for body in BODIES:
        assert ours.call(subject, body) == theirs.call(subject, body)


@pytest.mark.parametrize("subject", UNPIN)
@pytest.mark.parametrize("body", [b"", b"{}", b'{"group":"g"}', b"no JSON"])
def test_unpinning_is_refused_as_by_nats_server(
    nats_stack: NatsStack, theirs: ApiClient, ours: ApiClient, subject: str, body: bytes
) -> None:
    replies = []
    for client in (theirs, ours):
        client.call("STREAM.CREATE.S", {"name": "S", "subjects": ["unpinned"]})
        config = {"durable_name": "C", "ack_policy": "explicit"}
        client.call("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        reply = client.call(subject, body)
        replies.append((reply["type"], reply["error"]["err_code"]))
    assert replies[0] == replies[1]
    if body.startswith(b"{"):
        answer = ask(nats_stack, "POST", f"/jetstream/api/{subject}", body)
        shown = json.loads(answer.body)
        assert (f"{shown['type']}_response", shown["error"]["code"]) == replies[1]


@pytest.mark.parametrize("name", ["a%7Cb", "%C3%A9", "a%25b", "x" * 250, "a-partition-0"])
def test_a_bad_name_of_a_stream_is_a_bad_request(nats_stack: NatsStack, name: str) -> None:
    config = json.dumps({"name": unquote(name), "subjects": ["bad.name"]}).encode()
    for form, member in (("", "code"), ("?form=v1", "err_code")):
        answer = ask(nats_stack, "POST", f"/jetstream/api/STREAM.CREATE.{name}{form}", config)
        assert (answer.status, json.loads(answer.body)["error"][member]) == (400, 10052)


@pytest.mark.parametrize(
    "config",
    [
        {"max_age": 31_536_000},
        {"max_age": 10**12, "duplicate_window": 31_536_000},
    ],
)
def test_a_time_that_is_too_short_is_refused_with_its_unit_and_what_was_meant(
    theirs: ApiClient, ours: ApiClient, config: dict[str, int]
) -> None:
    body = {"name": "S", "subjects": ["short"], **config}
    expected, found = theirs.call("STREAM.CREATE.S", body), ours.call("STREAM.CREATE.S", body)
    assert found["error"]["err_code"] == expected["error"]["err_code"] == 10052
    sentence = found["error"]["description"]
    assert sentence.startswith(expected["error"]["description"])
    assert "31536000 of them are 31.536ms; 31536000 seconds are 31536000000000000" in sentence


@pytest.mark.parametrize(
    ("reply", "headers", "code"),
    [
        ("_INBOX.batch.1.$FI", "", 10205),
        ("_INBOX.batch.1", "Nats-Batch-Id: a\r\nNats-Batch-Sequence: 1\r\n", 10174),
    ],
)
def test_a_stream_that_allows_batches_is_made_and_a_batch_is_refused(
    nats_stack: NatsStack, ours: ApiClient, reply: str, headers: str, code: int
) -> None:
    config = {"name": "BATCHES", "subjects": ["batches"], "allow_batched": True}
    shown = ours.call("STREAM.CREATE.BATCHES", {**config, "allow_atomic": True})["config"]
    assert (shown["allow_batched"], shown["allow_atomic"]) == (True, True)
    with RawNats(nats_stack.nats) as client:
        client.connect(**QUIET)
        block = f"NATS/1.0\r\n{headers}\r\n"
        client.send(
            "SUB _INBOX.batch.> 1", f"HPUB batches {reply} {len(block)} {len(block)}", block
        )
        assert client.line().startswith(f"MSG {reply} 1")
        assert json.loads(client.line())["error"]["err_code"] == code
    assert ours.call("STREAM.INFO.BATCHES")["state"]["messages"] == 0
    ours.call("STREAM.DELETE.BATCHES")


def test_the_largest_message_is_the_same_over_http(nats_stack: NatsStack, ours: ApiClient) -> None:
    ours.call("STREAM.CREATE.LARGE", {"name": "LARGE", "subjects": ["large"]})
    limit = 1 << 20
    for headers, size, status in (({}, limit, 200), ({}, limit + 1, 413), (ID, limit, 413)):
        answer = ask(nats_stack, "POST", "/jetstream/publish/large", b"x" * size, headers)
        assert answer.status == status, answer.body
    assert ours.publish("large", b"x" * limit)["seq"] == 2
    with pytest.raises(AssertionError, match="Maximum"), ApiClient(nats_stack.nats) as client:
        client.publish("large", b"x" * (limit + 1))
    ours.call("STREAM.DELETE.LARGE")
