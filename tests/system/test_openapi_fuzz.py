"""The running router does what `/openapi.json` says: requests that schemathesis makes from it.

All of it runs as an administrator against one private stack, so it may delete, terminate and unload
what it likes. Half of the names in paths are of things that are there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from router.web.pulsar_admin.policies import POLICIES
from tests.system.stack import Stack
from tests.unit.web.applications import HASHES

EXAMPLES: Final = int(os.environ.get("SOAK_OPENAPI_EXAMPLES", "3"))
"""Requests for each operation and mode."""
LONG: Final = "SOAK_OPENAPI_EXAMPLES" in os.environ
pytestmark = [pytest.mark.system, pytest.mark.timeout(7200 if LONG else 1200)]
TIMEOUT_SECONDS: Final = 20.0
USER: Final = ("anna", "secret")
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SPELLING: Final = re.compile(r"^/(?:v1|topics/(?:non-)?persistent)/|/consumers/\{consumer\}")
"""Paths that are another spelling of one that is there as well: the views are the same."""
BEYOND_SCHEMAS: Final = (
    (r"(/delete|/purge|/connections/end)$", "the name written once more, or of what is there"),
    (r"/tenants/\{tenant\}$", "a namespace of it is there"),
    (r"/(schema|compatibility|version)$", "the definition of a schema"),
    (r"/groups/\{group\}/reset$", "a field that another one names"),
    (r"/console/.*/replay$", "places in each partition"),
    (r"/dead-letters/.*/(requeue|discard)$", "letters are named, or all of them"),
    (r"/jetstream/(ack|nak|term|in-progress)$", "the token of a message that was fetched"),
    (r"/latest/\{key\}$", "a key in base64 if the query says so"),
    (r"^/topics/\{tenant\}/\{namespace\}/\{topic\}(/partitions/\{partition\})?$", "two delays"),
    (r"/subscription/\{subscription\}$", "the definition of a schema"),
    (r"/jetstream/api/", "the call that the subject names"),
    (r"/jetstream/publish/", "the stream's last message"),
)
"""Paths whose requests may be refused for what no schema can say, and what that is."""
REJECTED: Final = [
    str(status) for status in (400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 422, 429)
]
SHUTS_OUT: Final = re.compile("/admin/blacklist/")
"""Paths by which the requests could have their own address refused."""
CHANGING: Final = frozenset({"delete", "put", "post", "patch"})
UNSET: Final = tuple(
    {"/persistence"}
    | {
        f"/{path}"
        for policy in POLICIES
        for of_topic in (False, True)
        for _, path, *_ in policy.routes(of_topic=of_topic)
    }
)
"""Policies: where there is none, the answer has no body, as Apache Pulsar's."""
SETTINGS: Final = {
    "consume_timeout": "20ms",
    "consume_max_timeout": "50ms",
    "stream_max_duration": "100ms",
    "stream_heartbeat": "50ms",
    "auth_attempts_per_minute": "100000",
    "auth_failures_per_minute": "100000",
    "log_level": "warning",
}
API: Final = "/jetstream/api"
CONSUMER: Final = {
    "stream_name": "ORDERS",
    "config": {"durable_name": "c", "ack_policy": "explicit"},
}
# What is there, by the names of paths' segments.
KNOWN: Final = {
    "topic": ("plain", "parted"),
    "group": ("g",),
    "consumer": ("c",),
    "subscription": ("g", "s"),
    "tenant": ("public",),
    "namespace": ("default",),
    "cluster": ("standalone",),
    "domain": ("persistent",),
    "role": ("producers", "consumers"),
    "ip": ("192.0.2.1",),
    "bits": ("32",),
    "partition": (0,),
    "ledger": (0, 1, 2),
    "entry": (0,),
    "version": (0,),
    "stream": ("ORDERS",),
    "subject": ("STREAM.INFO.ORDERS", "CONSUMER.LIST.ORDERS", "STREAM.CREATE.NEW", "orders.new"),
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("described")
    (folder / "users").write_text(f"{USER[0]}:{HASHES['argon2']}\n")
    (folder / "permissions").write_text(f"{USER[0]} * manage,publish,subscribe\n")
    files = {"auth_users": str(folder / "users"), "auth_permissions": str(folder / "permissions")}
    stack = Stack(folder, "--workers", "1", "--pulsar", "127.0.0.1:0", **files, **SETTINGS)
    stack.start()
    yield stack
    stack.stop()


def fill(stack: Stack) -> None:
    """Make the things of KNOWN that are not there."""
    with requests.Session() as session:
        session.auth = USER
        for method, path, body in (
            ("PUT", "/admin/v2/tenants/public", '{"allowedClusters":["standalone"]}'),
            ("PUT", "/admin/v2/namespaces/public/default", ""),
            ("POST", "/topics/create", '{"topicName":"parted","partitionCount":2}'),
            ("POST", "/events/plain", '{"a": 1}'),
            ("POST", "/events/parted", '[{"a": 1},{"a": 2}]'),
            ("GET", "/events/plain/g/c?from=earliest", ""),
            ("GET", "/events/parted/g/c?from=earliest", ""),
            ("POST", "/topics/public/default/plain/subscription/s", '{"id":"c"}'),
            ("POST", f"{API}/STREAM.CREATE.ORDERS", '{"name":"ORDERS","subjects":["orders.*"]}'),
            ("POST", f"{API}/CONSUMER.CREATE.ORDERS.c", json.dumps(CONSUMER)),
        ):
            kind = {"Content-Type": "application/json"}
            session.request(method, stack.url + path, data=body, headers=kind, timeout=20)


@pytest.fixture(scope="module")
def schema(stack: Stack) -> Any:
    return schemathesis.openapi.from_url(f"{stack.url}/openapi.json")


def traced(stack: Stack) -> str:
    """Return what the log has of failures of the router itself."""
    log = (stack.folder / "serve.log").read_text(errors="replace")
    return log[max(0, log.find("Traceback") - 2000) :] if "Traceback" in log else ""


def acceptance() -> str:
    """Return a configuration by which only BEYOND_SCHEMAS may refuse what is described."""
    names = [check.__name__ for check in CHECKS]
    names += ["unsupported_method", "positive_data_acceptance", "negative_data_rejection"]
    lines = ["[checks]", "enabled = false"]
    lines += [f"{name}.enabled = true" for name in names]
    lines += [f"negative_data_rejection.expected-statuses = {REJECTED}"]
    for path, _ in BEYOND_SCHEMAS:
        lines += ["[[operations]]", f"include-path-regex = '{path}'"]
        lines += ["checks.positive_data_acceptance.enabled = false"]
    return "\n".join(lines)


def test_bounds_of_all_that_is_described_are_answered_as_described(stack: Stack) -> None:
    """Each parameter and field at its bounds, beside them, twice, and not there; each method.

    What the description allows is taken, and what it does not is refused.
    """
    fill(stack)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{stack.url}/openapi.json"]
    command += ["--auth", ":".join(USER), "--phases", "coverage", "--generation-deterministic"]
    (stack.folder / "schemathesis.toml").write_text(acceptance())
    command += ["--request-timeout", str(TIMEOUT_SECONDS), "--continue-on-failure"]
    command += ["--no-color", "--warnings", "off"]
    left_out = SHUTS_OUT.pattern if LONG else f"{SHUTS_OUT.pattern}|{SPELLING.pattern}"
    command += ["--exclude-path-regex", left_out]
    ended = subprocess.run(
        command, cwd=stack.folder, capture_output=True, text=True, timeout=1000, check=False
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-2_000:]
    assert not traced(stack)


def test_router_answers_as_it_is_described(stack: Stack, schema: Any) -> None:
    session = requests.Session()
    session.auth = USER
    failures: list[str] = []
    fill(stack)
    for found in schema.get_all_operations():
        operation = found.ok()
        if SHUTS_OUT.search(operation.path) or (not LONG and SPELLING.search(operation.path)):
            continue
        for mode in schemathesis.GenerationMode:
            try:
                fuzz(stack, session, operation, mode)
            except Unsatisfiable:
                continue  # nothing about the request can be wrong
            except (FailureGroup, AssertionError, requests.RequestException) as error:
                failures.append(f"{operation.label}, {mode.value}: {error}")
        if operation.method in CHANGING:
            fill(stack)
    assert not failures, "\n\n".join(failures)
    assert not traced(stack)


def fuzz(stack: Stack, session: requests.Session, operation: Any, mode: Any) -> None:
    """Make requests of one operation; fail for the first answer that is not as described."""

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), known=st.data())
    def run(case: Any, known: st.DataObject) -> None:
        if known.draw(st.integers(0, 3)):
            names = [name for name in case.path_parameters or () if name in KNOWN]
            found = {name: known.draw(st.sampled_from(KNOWN[name])) for name in names}
            case.path_parameters = {**(case.path_parameters or {}), **found}
        answer = case.call(base_url=stack.url, session=session, timeout=TIMEOUT_SECONDS)
        assert "Traceback" not in answer.text
        unset = operation.path.endswith(UNSET) and answer.status_code == 200 and not answer.content
        case.validate_response(answer, checks=CHECKS[:2] if unset else CHECKS)

    run()
