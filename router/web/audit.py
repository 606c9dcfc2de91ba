"""Which requests are administrative changes, and the record of each.

What a request changes is its path; beside it stand fields of a form, a body or a query that a list
names, so that no secret and no message can be among them. A refused request changed nothing, and is
not recorded: a client without rights cannot fill the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol
from wsgiref.types import WSGIEnvironment

import structlog
from flask import Request

from router.errors import RouterError
from router.web.addresses import USER
from router.web.console.fields import Fields
from router.web.forms import FIELDS
from router.web.requests import CHANGES_NOTHING, recorded
from router.wire.nats.subjects import api_change

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
DATA: Final = frozenset(
    {"events", "event_streams", "pulsar_rest", "jetstream_light", "openapi", "ops", "metrics"}
)
"""Blueprints of those who publish and consume."""
NO_CHANGES: Final = frozenset(
    {
        *("console.sign_in", "console.sign_out", "console.theme", "console.publish"),
        *("console.send_again", "console.replay_batch", "admin.drop_consumers"),
        *("pulsar_admin.compatibility", "pulsar_admin.version_of"),
        *("pulsar_admin.analyze_backlog", "pulsar_admin.backlog_size"),
    }
)
"""Other routes that publish, read, or are about a visitor alone."""
ACTIONS: Final = {
    "console.create": "create-topic",
    "console.delete": "delete-topic",
    "console.change": "change-topic",
    "console.reset": "reset-group",
    "console.requeue": "requeue-dead-letters",
    "console.discard": "discard-dead-letters",
    "console.abort": "abort-transaction",
    "console.end_connection": "disconnect",
    "topics.create": "create-topic",
    "topics.delete": "delete-topic",
    "groups.reset": "reset-group",
    "groups.delete": "delete-group",
    "dead_letters.requeue": "requeue-dead-letters",
    "dead_letters.discard": "discard-dead-letters",
    "transactions.abort": "abort-transaction",
    "keys.create": "create-key",
    "keys.update": "change-key",
    "keys.delete": "delete-key",
    "console.key_create": "create-key",
    "console.key_update": "change-key",
    "console.key_delete": "delete-key",
    "console.access_change": "change-access",
}
"""Names of changes by endpoints, where the endpoint's own name is another."""
DETAILS: Final = (
    *("name", "topicName", "partitions", "partitionCount", "retention", "retention_size"),
    *("retentionMs", "retentionBytes", "cleanup", "cleanupPolicy", "deduplication", "change"),
    *("to", "time", "which", "all", "before", "limit", "filter", "force", "peer", "messageTTL"),
    *(
        "backlogQuotaType",
        "min_lag",
        "max_lag",
        "dirty_ratio",
        "delete_retention",
        "masked",
        "mask",
    ),
)
"""Fields that may stand in the audit: none holds a secret, or what a message says."""
API_CALLS: Final = ("CREATE", "UPDATE", "DELETE", "PURGE", "PAUSE", "RESET", "UNPIN", "RESTORE")

_log = structlog.get_logger(__name__)


class RecordsChanges(Protocol):
    """Where changes are recorded: the node's broker."""

    def record(
        self, action: str, target: str, user: str, address: str, details: Mapping[str, Any]
    ) -> None:
        """Record a change; raise RouterError."""
        ...


class Audit:
    """Records the changes that requests made; called with each answer."""

    def __init__(self, records: RecordsChanges) -> None:
        self._records = records

    def __call__(self, request: Request, status: int) -> None:
        """Record what a request changed, or may have changed; log it if that fails."""
        environ, endpoint = request.environ, request.endpoint or ""
        if not is_change(request, status):
            return
        details, names = dict(_details(environ)), request.view_args or {}
        action = ACTIONS.get(endpoint) or endpoint.partition(".")[2].replace("_", "-")
        target = "/".join(names.values())
        if endpoint.startswith("jetstream."):
            action, target = api_change(names["subject"])
        elif not names:  # what is made has its name in the body
            target = str(details.get("topicName") or details.get("name") or "")
        change = {
            "action": action,
            "target": target,
            "user": environ.get(USER, ""),
            "address": environ.get("REMOTE_ADDR", ""),
            "details": details | ({"status": status} if status >= 500 else {}),
        }
        try:
            self._records.record(**change)
        except RouterError as error:
            _log.warning("change-not-recorded", reason=str(error), **change)


def is_change(request: Request, status: int) -> bool:
    """Return whether a request may have changed something that is no message."""
    endpoint = request.endpoint or ""
    if request.method in READING or 400 <= status < 500 or CHANGES_NOTHING in request.environ:
        return False
    blueprint = endpoint.partition(".")[0]
    if not endpoint or blueprint in DATA or endpoint in NO_CHANGES:
        return False
    if blueprint == "jetstream":
        words = [*(request.view_args or {}).get("subject", "").split("."), "", ""]
        # Names of streams follow, which may be called as these are.
        return words[2 if words[1] in {"MSG", "DURABLE"} else 1] in API_CALLS
    return True


def _details(environ: WSGIEnvironment) -> Iterator[tuple[str, object]]:
    sources: list[Callable[[str], object]] = [environ.get(FIELDS, {}).get]
    try:
        sources.append(recorded(environ, DETAILS).get)
        if environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
            form = Fields(environ)
            sources.append(lambda name: form.text(name, "") or None)
    except RouterError:
        pass  # the view has refused, or did without it
    for name in DETAILS:
        for source in sources:
            if (value := source(name)) is not None:
                yield name, value
                break
