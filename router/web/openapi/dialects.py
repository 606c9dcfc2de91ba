"""The dialects as the description has them: which blueprint speaks which, and how each fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from router.web.dmaap.errors import DENIALS, ErrorTexts
from router.web.media import PROBLEM
from router.web.openapi.description import HTML, JSON, Schema, schema, shape
from router.web.pulsar_admin.views import STATUS
from router.web.pulsar_rest.errors import status_of_code

ERRORS: Final[Mapping[str, Schema]] = {
    "DmaapError": {
        "description": "Fields of the guide, and those that the original sends.",
        **shape(
            {
                "httpStatusCode": int,
                "mrErrorCode": int,
                "errorMessage": str,
                "helpURL": str,
                "transactionid": str,
                "status": int,
                "mrstatus": int,
                "message": str,
            }
        ),
    },
    "PulsarRestError": {
        "description": "PIP 64's form, or `reason` for a request in Apache Pulsar's dialect."
        " The first three digits of `error_code` are the status.",
        "anyOf": [
            shape({"error_code": int, "message": str}),
            shape({"reason": str}),
        ],
    },
    "PulsarAdminError": {
        "description": "Apache Pulsar's form.",
        **shape({"reason": str}),
    },
    "JetStreamError": {
        "description": "An error inside the type that the call returns otherwise. In the seed's"
        " form `error` has `message`, `code` and `kind`, in the form `v1` `code`, `err_code` and"
        " `description`.",
        **shape({"type": str, "error": dict}),
    },
    "LightError": {
        "description": "`-ERR`, and behind it `reason`, `stream` and `code` in URL encoding; with"
        " `form=v1` a publish is refused in JSON.",
        **schema(str),
    },
    "Problem": {
        "description": "A problem document (RFC 9457). `code` is stable, `hint` says what helps.",
        **shape(
            {"type": str, "title": str, "status": int, "detail": str, "code": str} | {"hint": str}
        ),
    },
}


@dataclass(frozen=True, slots=True)
class ErrorDialect:
    """A group of routes with one form of errors; `status` maps a code and an endpoint.

    `pages`: what a browser gets instead, as the content of an answer.
    """

    tag: str
    meaning: str
    error: str
    status: Callable[[str, str], int]
    kind: str = JSON
    pages: Mapping[str, Any] = field(default_factory=dict)


def dialects(texts: ErrorTexts) -> Mapping[str, ErrorDialect]:
    """Return the dialect of each blueprint, with the statuses that settings ask for."""

    def forbidden(code: str, status: int) -> int:
        return texts.forbidden_status if code in DENIALS else status

    def dmaap(code: str, endpoint: str) -> int:
        return texts.of_code(code, endpoint).status

    def pip64(code: str, endpoint: str) -> int:
        del endpoint
        return forbidden(code, status_of_code(code))

    def pulsar(code: str, endpoint: str) -> int:
        del endpoint
        return forbidden(code, STATUS.get(code) or texts.of_code(code).status)

    def problem(code: str, endpoint: str) -> int:
        del endpoint
        return texts.of_code(code).status

    def of_dmaap(tag: str, meaning: str) -> ErrorDialect:
        return ErrorDialect(tag, meaning, "DmaapError", dmaap)

    def page(tag: str, meaning: str) -> ErrorDialect:
        html = {HTML: {"schema": schema(str)}}
        return ErrorDialect(tag, meaning, "Problem", problem, PROBLEM, html)

    events = of_dmaap("Events", "DMaaP: publish with POST, poll with GET, streams.")
    topics = of_dmaap("Topics", "DMaaP: topics, their groups and access lists.")
    admin = of_dmaap("Administration", "DMaaP: who polls, and which addresses are refused.")
    streams = "Streams, consumers, and messages for light clients."
    as_json = {JSON: {"schema": schema(dict)}}
    ops = of_dmaap("Operation", "Health, readiness and metrics.")
    return {
        "events": events,
        "event_streams": events,
        "topics": topics,
        "groups": topics,
        "latest": topics,
        "transactions": of_dmaap("Transactions", "What producers of Kafka and Pulsar hold open."),
        "dead_letters": of_dmaap("Dead letters", "What waits in dead-letter topics."),
        "acls": topics,
        "keys": of_dmaap("API keys", "DMaaP: keys with which requests are signed."),
        "admin": admin,
        "ops": ops,
        "metrics": ops,
        "pulsar_rest": ErrorDialect(
            "PIP 64", "Pulsar REST: produce, read, consume.", "PulsarRestError", pip64
        ),
        "pulsar_admin": ErrorDialect(
            "Pulsar administration", "Apache Pulsar's own paths.", "PulsarAdminError", pulsar
        ),
        "jetstream": ErrorDialect("JetStream", streams, "JetStreamError", problem),
        "jetstream_light": ErrorDialect(
            "JetStream", streams, "LightError", problem, "text/plain", as_json
        ),
        "console": page("Console", "Pages and their JSON twins."),
        "openapi": page("API", "This description."),
    }
