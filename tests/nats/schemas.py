"""jsm.go's schemas of JetStream's API: whether a reply is what tools expect of its type."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import Any, Final

from jsonschema import Draft7Validator

from tests.servers.golang import NATS, built

PREFIX: Final = "io.nats.jetstream.api.v1."
PUB_ACK: Final = "pub_ack_response"
SECONDS: Final = 30.0
AMBIGUOUS: Final = {"consumer_names_response", "consumer_list_response"}
"""Types whose schema takes an error with the fields of a page for both of its branches; this is
what the real server sends."""

PAUSE: Final = "consumer_pause_response"
"""The type whose schema takes no error at all: its other branch asks for nothing."""
UNPIN: Final = "consumer_unpin_response"
"""The type whose schema has its error in a member of its own."""
PLAIN: Final = "consumer_delete_response"
"""A type that has nothing of its own beside an error."""


@cache
def schemas() -> dict[str, Any]:
    """Return the schemas by the types of messages, without their common prefix."""
    done = subprocess.run(
        [str(built(NATS)), "schemas"], capture_output=True, timeout=SECONDS, check=True
    )
    return dict(json.loads(done.stdout))


@cache
def _validator(kind: str) -> Draft7Validator:
    return Draft7Validator(schemas()[kind])


def faults(reply: dict[str, Any]) -> list[str]:
    """Return what is wrong with a reply of the API; an answer to a publish has no type."""
    kind = str(reply.get("type", PREFIX + PUB_ACK)).removeprefix(PREFIX)
    if kind not in schemas():
        return [f"unknown type {kind}"]
    if kind in AMBIGUOUS and "error" in reply:
        reply = {name: value for name, value in reply.items() if name != "consumers"}
    if kind == PAUSE and "error" in reply:
        kind, reply = PLAIN, {**reply, "type": PREFIX + PLAIN}
    if kind == UNPIN and "error" in reply:
        reply = {**reply, "error": {"error": reply["error"]}}
    found = _validator(kind).iter_errors(reply)
    return [f"{kind} {error.json_path}: {error.message[:300]}" for error in found]


def configuration_faults(kind: str, configuration: dict[str, Any]) -> list[str]:
    """Return what is wrong with `stream_configuration` or `consumer_configuration`."""
    value = json.loads(json.dumps(configuration))
    found = _validator(kind).iter_errors(value)
    return [f"{kind} {error.json_path}: {error.message}" for error in found]
