"""What the seed of JetStream's HTTP form demands, item by item, of any router.

The numbers are those of the check-list of the seed's own sentences. A check is given a client of a
router that `prepare` was called for, and one of a router whose JetStream is turned off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

PREFIX: Final = "io.nats.jetstream.api.v1."
ZERO_CONFIG: Final = {
    "name": "",
    "retention": "",
    "max_consumers": 0,
    "max_msgs": 0,
    "max_bytes": 0,
    "max_age": 0,
    "storage": "",
    "num_replicas": 0,
}
ZERO_STATE: Final = {
    "messages": 0,
    "bytes": 0,
    "first_seq": 0,
    "last_seq": 0,
    "consumer_count": 0,
}
ADMIN: Final = {
    "INFO": "account_info",
    "STREAM.INFO.bob": "stream_info",
    "STREAM.UPDATE.bob": "stream_update",
    "STREAM.CREATE.bob": "stream_create",
    "STREAM.LIST": "stream_list",
    "STREAM.NAMES": "stream_names",
    "STREAM.PURGE.bob": "stream_purge",
    "STREAM.DELETE.bob": "stream_delete",
    "STREAM.MSG.GET.bob": "stream_msg_get",
    "STREAM.MSG.DELETE.bob": "stream_msg_delete",
    "CONSUMER.CREATE.bob.c": "consumer_create",
    "CONSUMER.INFO.bob.c": "consumer_info",
    "CONSUMER.LIST.bob": "consumer_list",
    "CONSUMER.NAMES.bob": "consumer_names",
    "CONSUMER.DELETE.bob.c": "consumer_delete",
}


class Reply(NamedTuple):
    """An answer: its status, media type and body."""

    status: int
    kind: str
    text: str


class Client(Protocol):
    """A client of a router."""

    def post(self, path: str, body: str = "") -> Reply:
        """Send a POST; return its answer."""
        ...


class Routers(NamedTuple):
    """A router, and one whose JetStream is off."""

    on: Client
    off: Client


def call(client: Client, subject: str, body: str = "") -> dict[str, Any]:
    """Return the answer to a call of the API, which is a JSON object whatever happened."""
    reply = client.post(f"/jetstream/api/{subject}", body)
    assert reply.kind == "application/json", reply
    found = json.loads(reply.text)
    assert isinstance(found, dict)
    return found


def error_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the error of an answer, which has the seed's three members."""
    error: dict[str, Any] = found["error"]
    assert list(error) == ["message", "code", "kind"]
    assert isinstance(error["message"], str)
    assert isinstance(error["code"], int)
    assert re.fullmatch(r"JetStream[A-Z][A-Za-z]+", error["kind"])
    return error


def publish(client: Client, subject: str, body: str = "x") -> str:
    reply = client.post(f"/jetstream/publish/{subject}", body)
    assert reply.kind == "text/plain"
    assert reply.text[:3] == "+OK" if reply.status == 200 else reply.text[:4] == "-ERR"
    return reply.text


def management_speaks_json(routers: Routers) -> None:
    for client in routers:
        for subject in (*ADMIN, "nonsense", "STREAM.INFO"):
            for body in ("", "{}", "{", "[]", "+OK"):
                call(client, subject, body)


def light_interactions_have_prefixes(routers: Routers) -> None:
    assert publish(routers.on, "ORDERS").startswith("+OK")
    assert publish(routers.on, "absent").startswith("-ERR")
    assert publish(routers.off, "ORDERS").startswith("-ERR")
    reply = routers.on.post("/jetstream/ack", "no token")
    assert (reply.kind, reply.text[:4]) == ("text/plain", "-ERR")


def context_is_in_url_encoding(routers: Routers) -> None:
    for line in (publish(routers.on, "ORDERS"), publish(routers.on, "absent")):
        prefix, _, context = line.partition(" ")
        assert " " not in context
        assert "+" not in context
        assert len(dict(parse_qsl(context, strict_parsing=True))) >= 1
        assert prefix in {"+OK", "-ERR"}


def no_body_means_an_empty_object(routers: Routers) -> None:
    for client in routers:
        for subject in ADMIN:
            without, empty = call(client, subject), call(client, subject, "{}")
            for found in (without, empty):
                assert found.pop("time")
                found.pop("api", None)  # it counts the calls
            assert without == empty, subject


def every_answer_is_an_object_of_its_type(routers: Routers) -> None:
    for client in routers:
        for subject, kind in ADMIN.items():
            found = call(client, subject)
            assert found["type"] == PREFIX + kind
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found["time"])


def errors_come_inside_the_type(routers: Routers) -> None:
    for subject, kind in ADMIN.items():
        found = call(routers.on, subject, "{")
        assert found["type"] == PREFIX + kind
        error_of(found)


def being_off_comes_inside_the_type(routers: Routers) -> None:
    for subject, kind in ADMIN.items():
        found = call(routers.off, subject)
        assert found["type"] == PREFIX + kind
        assert error_of(found)["kind"] == "JetStreamNotEnabled"


def stream_info_has_its_members(routers: Routers) -> None:
    publish(routers.on, "ORDERS")
    found = call(routers.on, "STREAM.INFO.ORDERS")
    assert list(found) == ["type", "time", "config", "state"]
    assert {
        *("name", "subjects", "retention", "max_consumers", "max_msgs", "max_bytes", "max_age"),
        *("max_msg_size", "storage", "num_replicas"),
    } <= found["config"].keys()
    assert found["config"]["subjects"] == ["ORDERS"]
    assert list(found["state"]) == list(ZERO_STATE)
    assert found["state"]["messages"] >= 1


def errors_have_a_minimally_valid_body(routers: Routers) -> None:
    found = call(routers.on, "STREAM.INFO.bob")
    assert found.pop("time")
    assert found.pop("error") == {
        "message": "unknown stream bob",
        "code": 10059,
        "kind": "JetStreamBadRequest",
    }
    assert found == {
        "type": f"{PREFIX}stream_info",
        "config": ZERO_CONFIG,
        "state": ZERO_STATE,
    }


def a_list_has_names(routers: Routers) -> None:
    found = call(routers.on, "STREAM.LIST")
    assert list(found) == ["type", "time", "streams"]
    assert found["type"] == f"{PREFIX}stream_list"
    assert "ORDERS" in found["streams"]
    assert all(isinstance(name, str) for name in found["streams"])


def lists_have_the_same_errors(routers: Routers) -> None:
    found = call(routers.off, "STREAM.LIST")
    assert error_of(found)
    assert list(found) == ["type", "time", "error", "streams"]
    assert found["streams"] == []


def there_are_four_forms(routers: Routers) -> None:
    assert re.fullmatch(r"\+OK stream=ORDERS&sequence=\d+", publish(routers.on, "ORDERS"))
    assert re.fullmatch(r"-ERR reason=[A-Za-z]+(%20[A-Za-z]+)+", publish(routers.on, "absent"))


def streams_that_fail_are_named(routers: Routers) -> None:
    body = json.dumps({"name": "OTHER", "subjects": ["ORDERS"]})
    assert "ORDERS" in error_of(call(routers.on, "STREAM.CREATE.OTHER", body))["message"]


def fields_are_untyped_and_documented(routers: Routers) -> None:
    from tests.docs.console import ROOT  # noqa: PLC0415

    page = (ROOT / "docs" / "jetstream-http.md").read_text(encoding="utf-8")
    for line in (publish(routers.on, "ORDERS"), publish(routers.off, "ORDERS")):
        for name, _ in parse_qsl(line.partition(" ")[2]):
            assert f"| `{name}` |" in page


Check = Callable[[Routers], None]
CHECKLIST: Final[tuple[tuple[int, Check], ...]] = (
    (1, management_speaks_json),
    (2, light_interactions_have_prefixes),
    (3, context_is_in_url_encoding),
    (4, no_body_means_an_empty_object),
    (5, every_answer_is_an_object_of_its_type),
    (6, errors_come_inside_the_type),
    (7, being_off_comes_inside_the_type),
    (8, stream_info_has_its_members),
    (9, errors_have_a_minimally_valid_body),
    (10, a_list_has_names),
    (11, lists_have_the_same_errors),
    (12, there_are_four_forms),
    (13, streams_that_fail_are_named),
    (14, fields_are_untyped_and_documented),
)


def prepare(client: Client) -> None:
    """Make the stream that the checks use."""
    body = json.dumps({"name": "ORDERS"})
    assert client.post("/jetstream/api/STREAM.CREATE.ORDERS", body).status == 200
