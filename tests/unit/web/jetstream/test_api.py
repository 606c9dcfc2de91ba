"""The API over HTTP: subjects to calls, both forms, and errors inside the type of the call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given as holds
from hypothesis import strategies as st

from router.errors import BackendUnavailableError, ForbiddenError
from router.services.jetstream.calls import ZERO_BODIES, call_of
from router.web.jetstream.forms import KINDS, Fault, Form, Writer
from router.wire.nats.jetstream.errors import ErrorCode, error
from router.wire.nats.jetstream.replies import AccountInfo, ApiReply
from tests.unit.web.applications import HASHES, Site, header
from tests.unit.web.jetstream.conftest import Open
from tests.unit.web.jetstream.streams import FakeStreams

PREFIX = "io.nats.jetstream.api.v1."
V1_ONLY = {"err_code", "description"}
SEED_ONLY = {"message", "kind"}
CONFIG = {
    "name": "ORDERS",
    "subjects": ["orders.*"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 31536000,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
    "compression": "none",
    "allow_direct": False,
    "consumer_limits": {},
    "metadata": {"_nats.level": "1"},
}
STATE = {
    "messages": 95563,
    "bytes": 40104315,
    "first_seq": 34,
    "first_ts": "2020-04-23T16:51:18Z",
    "last_seq": 95596,
    "last_ts": "2020-04-23T16:51:18Z",
    "consumer_count": 1,
}
INFO = {
    "type": f"{PREFIX}stream_info_response",
    "total": 0,
    "offset": 0,
    "limit": 0,
    "config": CONFIG,
    "created": "2020-04-23T16:51:18Z",
    "state": STATE,
    "cluster": {"leader": "x"},
    "ts": "2020-04-23T16:51:18Z",
}


def call(site: Site, subject: str, body: bytes | str = b"", **more: Any) -> tuple[int, Any]:
    answer = site.client.post(f"/jetstream/api/{subject}", data=body, **more)
    return answer.status_code, answer.get_json()


def test_stream_info_has_the_members_of_the_seed(site: Site, streams: FakeStreams) -> None:
    streams.answers("$JS.API.STREAM.INFO.ORDERS", INFO)
    status, found = call(site, "STREAM.INFO.ORDERS")
    assert status == 200
    assert list(found) == ["type", "time", "config", "state"]
    assert found["type"] == f"{PREFIX}stream_info"
    assert found["config"] == {
        "name": "ORDERS",
        "subjects": ["orders.*"],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 31536000,
        "max_msg_size": -1,
        "storage": "file",
        "num_replicas": 1,
    }
    assert found["state"] == {
        "messages": 95563,
        "bytes": 40104315,
        "first_seq": 34,
        "last_seq": 95596,
        "consumer_count": 1,
    }


def test_configuration_that_is_no_default_is_shown(site: Site, streams: FakeStreams) -> None:
    more = {"discard": "new", "metadata": {"a": "b", "_nats.level": "1"}, "deny_delete": True}
    streams.answers("$JS.API.", {**INFO, "config": {**CONFIG, **more}})
    found = call(site, "STREAM.INFO.ORDERS")[1]["config"]
    assert {name: found[name] for name in more} == {**more, "metadata": {"a": "b"}}


def test_form_v1_is_what_the_broker_answers_byte_for_byte(site: Site, streams: FakeStreams) -> None:
    streams.answers("$JS.API.STREAM.INFO.ORDERS", INFO)
    for more in ({"query_string": "form=v1"}, {"headers": {"Nats-Api-Form": "v1"}}):
        answer = site.client.get("/jetstream/api/STREAM.INFO.ORDERS", **more)
        assert json.loads(answer.data) == INFO


def test_a_form_that_there_is_not_is_refused_in_the_type(site: Site) -> None:
    answer = site.client.get("/jetstream/api/STREAM.LIST?form=v2")
    assert (answer.status_code, answer.get_json()["type"]) == (400, f"{PREFIX}stream_list")


@pytest.mark.parametrize("body", [b"", b"{}", b" \n"])
def test_no_body_means_an_empty_object(site: Site, streams: FakeStreams, body: bytes) -> None:
    streams.answers("$JS.API.", INFO)
    assert call(site, "STREAM.INFO.ORDERS", body)[0] == 200
    assert streams.asked[-1].message.payload == b"{}"


@pytest.mark.parametrize("body", ["{", "[]", "1", "null", '"x"', "{}x"])
def test_a_body_that_is_no_object_is_refused_in_the_type(
    site: Site, streams: FakeStreams, body: str
) -> None:
    streams.answers("$JS.API.", INFO)
    status, found = call(site, "STREAM.INFO.ORDERS", body)
    assert (status, found["error"]["code"]) == (400, 10025)
    assert found["type"] == f"{PREFIX}stream_info"
    assert found["config"]["name"] == ""
    assert not streams.asked


@holds(st.sampled_from(sorted(ZERO_BODIES)), st.sampled_from(sorted(ErrorCode)))
def test_the_two_forms_of_an_error_never_mix(kind: str, number: ErrorCode) -> None:
    writer, made = Writer(lambda: 0), call_of("INFO")._replace(type=kind)
    fault = Fault(number.http_status, int(number), number.description)
    seed, v1 = (writer.fault(made, fault, form) for form in (Form.SEED, Form.V1))
    assert set(seed["error"]) == {"message", "code", "kind"}
    assert set(v1["error"]) == {"code", "err_code", "description"}
    assert seed["type"] + "_response" == v1["type"]
    assert ("time" in seed, "time" in v1) == (True, False)
    assert seed["error"]["code"] == number
    assert seed["error"]["kind"].startswith("JetStream")
    assert 400 <= fault.status <= 599


@pytest.mark.parametrize("kind", sorted(ZERO_BODIES.keys() - {"error", "consumer_fetch"}))
def test_v1_errors_of_the_router_have_the_body_of_the_brokers(kind: str) -> None:
    found = error(ErrorCode.NOT_ENABLED)
    made = Writer(lambda: 0).fault(
        call_of("INFO")._replace(type=kind), Fault.of_error(found), Form.V1
    )
    assert made == ApiReply(kind, error=found).to_json()


def test_an_unknown_stream_is_named_and_has_zeros_as_the_seed_shows(
    site: Site, streams: FakeStreams
) -> None:
    fault = error(ErrorCode.STREAM_NOT_FOUND)
    streams.answers("$JS.API.", ApiReply("stream_info", error=fault).to_json())
    status, found = call(site, "STREAM.INFO.bob")
    assert status == 404
    assert found.pop("time")
    assert found == {
        "type": f"{PREFIX}stream_info",
        "error": {"message": "unknown stream bob", "code": 10059, "kind": "JetStreamBadRequest"},
        "config": {
            "name": "",
            "retention": "",
            "max_consumers": 0,
            "max_msgs": 0,
            "max_bytes": 0,
            "max_age": 0,
            "storage": "",
            "num_replicas": 0,
        },
        "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0},
    }


def test_lists_have_names_and_say_if_there_are_more(site: Site, streams: FakeStreams) -> None:
    page = {"type": f"{PREFIX}stream_names_response", "total": 1, "offset": 0, "limit": 1024}
    streams.answers("$JS.API.STREAM.NAMES", page | {"streams": ["ORDERS"]})
    for subject in ("STREAM.LIST", "STREAM.NAMES"):
        found = call(site, subject)[1]
        kind = subject.lower().replace(".", "_")
        assert (found["type"], found["streams"]) == (PREFIX + kind, ["ORDERS"])
        assert set(found) == {"type", "time", "streams"}
    streams.answers("$JS.API.STREAM.NAMES", page | {"streams": ["ORDERS"], "total": 2000})
    assert call(site, "STREAM.LIST")[1]["total"] == 2000
    streams.answers("$JS.API.STREAM.NAMES", page | {"streams": None, "total": 0})
    assert call(site, "STREAM.LIST")[1]["streams"] == []


def test_account_info_has_counts_in_both_forms(site: Site, streams: FakeStreams) -> None:
    counts = AccountInfo(streams=3, consumers=2)
    streams.answers("$JS.API.INFO", ApiReply("account_info", counts).to_json())
    status, seed = call(site, "INFO")
    assert (status, seed["type"]) == (200, f"{PREFIX}account_info")
    assert (seed["streams"], seed["consumers"]) == (3, 2)
    v1 = call(site, "INFO?form=v1")[1]
    assert (v1["type"], v1["streams"]) == (f"{PREFIX}account_info_response", 3)


def test_list_in_form_v1_has_descriptions(site: Site, streams: FakeStreams) -> None:
    listed = {"type": f"{PREFIX}stream_list_response", "streams": [INFO]}
    streams.answers("$JS.API.STREAM.LIST", listed)
    assert call(site, "STREAM.LIST?form=v1") == (200, listed)


CHANGES = [
    *("STREAM.CREATE.S", "STREAM.UPDATE.S", "STREAM.PURGE.S", "STREAM.DELETE.S"),
    *("STREAM.MSG.DELETE.S", "CONSUMER.CREATE.S.c", "CONSUMER.DELETE.S.c", "CONSUMER.PAUSE.S.c"),
    *("CONSUMER.MSG.NEXT.S.c", "CONSUMER.DURABLE.CREATE.S.c"),
]


@pytest.mark.parametrize("subject", CHANGES)
def test_get_changes_nothing(site: Site, streams: FakeStreams, subject: str) -> None:
    for path in (subject, f"$JS.API.{subject}", subject.replace(".", "%2E", 1)):
        answer = site.client.get(f"/jetstream/api/{path}")
        assert answer.status_code == 405
        assert "GET" not in answer.headers["Allow"]
        assert answer.get_json()["type"] == PREFIX + call_of(subject).type
    assert not streams.asked


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        ("STREAM.INFO", "stream_info"),
        ("STREAM.INFO.", "stream_info"),
        ("STREAM.INFO.*", "stream_info"),
        ("STREAM.LIST.x", "stream_list"),
        ("CONSUMER.INFO.S", "consumer_info"),
        ("CONSUMER.INFO.S.c.d", "consumer_info"),
        ("STREAM.MSG.GET", "stream_msg_get"),
        ("STREAM.SNAPSHOT.S", "stream_snapshot"),
        ("STREAM.RESTORE.S", "stream_restore"),
        ("STREAM.FOO.x", "error"),
        ("nonsense", "error"),
    ],
)
def test_a_subject_that_is_no_call_is_refused_without_asking(
    site: Site, streams: FakeStreams, subject: str, kind: str
) -> None:
    for form in ("", "?form=v1"):
        status, found = call(site, subject + form)
        assert status == 400
        assert found["type"] == PREFIX + kind + ("_response" if form else "")
    assert not streams.asked


def test_the_dot_of_a_stream_s_topic_may_be_written_as_it_is(
    site: Site, streams: FakeStreams
) -> None:
    streams.answers("$JS.API.", INFO)
    for path in ("STREAM.INFO.a%252Eb", "STREAM.INFO.a%2Eb", "STREAM.INFO.a.b"):
        assert site.client.get(f"/jetstream/api/{path}").status_code == 200
        assert streams.asked[-1].message.subject == "$JS.API.STREAM.INFO.a%2Eb"


def test_streams_that_overlap_are_named(site: Site, streams: FakeStreams) -> None:
    overlap = ApiReply("stream_create", error=error(ErrorCode.STREAM_SUBJECT_OVERLAP)).to_json()
    streams.answers("$JS.API.STREAM.CREATE", overlap)
    streams.answers("$JS.API.STREAM.NAMES", {"streams": ["A", "NEW"]}, {"streams": ["B"]})
    body = json.dumps({"name": "NEW", "subjects": ["a.*", "b"]})
    status, found = call(site, "STREAM.CREATE.NEW", body)
    assert (status, found["type"]) == (400, f"{PREFIX}stream_create")
    assert found["error"]["message"].endswith(": A, B")


def test_errors_that_are_the_request_s_fault_are_no_server_errors(
    site: Site, streams: FakeStreams
) -> None:
    reply = ApiReply("stream_create", error=error(ErrorCode.STREAM_REPLICAS_NOT_SUPPORTED))
    streams.answers("$JS.API.", reply.to_json())
    assert call(site, "STREAM.CREATE.S?form=v1") == (400, reply.to_json())


def test_a_broker_that_is_away_is_answered_in_the_type(site: Site, streams: FakeStreams) -> None:
    streams.answers("$JS.API.", BackendUnavailableError("away", retry_after=3))
    answer = site.client.get("/jetstream/api/STREAM.LIST")
    found = answer.get_json()
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "3")
    assert (found["streams"], found["error"]["kind"]) == ([], "JetStreamUnavailable")
    streams.answers("$JS.API.", ForbiddenError("no"))
    assert call(site, "STREAM.PURGE.S")[1]["error"]["kind"] == "JetStreamForbidden"
    streams.answers("$JS.API.", [])
    assert call(site, "STREAM.PURGE.S")[0] == 504


@pytest.mark.parametrize("subject", [*CHANGES, "STREAM.INFO.S", "STREAM.LIST", "INFO"])
def test_jetstream_that_is_off_says_so_in_the_type(
    opened: Open, streams: FakeStreams, subject: str
) -> None:
    site = opened(jetstream_enabled="no")
    status, found = call(site, subject)
    assert (status, found["error"]["code"]) == (503, 10076)
    assert found["error"]["kind"] == "JetStreamNotEnabled"
    assert found["type"] == PREFIX + call_of(subject).type
    assert not streams.asked


def test_credentials_are_demanded_in_the_type(
    opened: Open, streams: FakeStreams, tmp_path: Any
) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{HASHES['argon2']}\n")
    site = opened(auth_users=str(users), jetstream_enabled="no")
    answer = site.client.get("/jetstream/api/STREAM.LIST")
    found = answer.get_json()
    assert (answer.status_code, found["type"]) == (401, f"{PREFIX}stream_list")
    assert answer.headers["WWW-Authenticate"].startswith("Basic")
    assert found["error"]["kind"] == "JetStreamUnauthorized"
    allowed = {"Authorization": header("anna", "secret")}
    assert site.client.get("/jetstream/api/STREAM.LIST", headers=allowed).status_code == 503


def test_a_foreign_host_is_refused_in_the_type(site: Site, streams: FakeStreams) -> None:
    answer = site.client.get("/jetstream/api/STREAM.LIST", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.get_json()["type"]) == (403, f"{PREFIX}stream_list")
    assert not streams.asked


@pytest.mark.parametrize(
    ("subject", "reads"),
    [(name, False) for name in CHANGES if "NEXT" not in name]
    + [(name, True) for name in ("INFO", "STREAM.INFO.S", "CONSUMER.LIST.S", "STREAM.MSG.GET.S")],
)
def test_only_what_changes_nothing_may_be_asked_again(
    site: Site, streams: FakeStreams, subject: str, reads: bool
) -> None:
    streams.answers("$JS.API.", ApiReply(call_of(subject).type).to_json() | INFO)
    call(site, subject)
    assert streams.asked[-1].reads is reads


def test_the_principal_of_a_request_is_handed_on(site: Site, streams: FakeStreams) -> None:
    streams.answers("$JS.API.", INFO)
    call(site, "STREAM.INFO.S")
    asked = streams.asked[-1]
    assert (asked.principal.name, asked.administers) == ("", True)


@holds(st.text(max_size=30), st.sampled_from(["STREAM.INFO.", "CONSUMER.CREATE.S.", "", "STREAM."]))
def test_every_subject_is_a_call_with_a_known_type(text: str, prefix: str) -> None:
    found = call_of(prefix + text)
    assert found.type in ZERO_BODIES
    if found.fault is None:
        assert not {" ", "\n", "\t", "\r"} & set(found.subject)
        assert "*" not in found.stream + found.consumer


def test_every_kind_is_documented() -> None:
    from tests.docs.console import ROOT  # noqa: PLC0415

    page = (ROOT / "docs" / "jetstream-http.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS.values() if f"`{kind}`" not in page] == []
