"""gunicorn's log lines, sent the way of the router's own, and the access log (`log.access`)."""

from __future__ import annotations

import logging
import os
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from gunicorn.glogging import Logger

from router import log
from router.web.addresses import USER

TRANSACTION: Final = "transactionid"
JSON: Final = "json"
FORMATS: Final = frozenset({"off", "common", JSON})
"""The values of `log.access`; `off` says nothing of a log that gunicorn is set to write."""
MAX_FIELD_CHARACTERS: Final = 2_000
_UNSAFE: Final = re.compile(r"[^!#-~]")


class GunicornLog(Logger):  # type: ignore[misc] # gunicorn has no type hints
    """Leaves writing to the root logger, and what only says that all is well to debug.

    The access log has the router's formats, wherever gunicorn is set to write it: gunicorn's own
    has no JSON, and trusts a name that nothing has checked. A format that an operator gave to
    gunicorn stays gunicorn's.
    """

    def setup(self, cfg: Any) -> None:
        """Take gunicorn's own handlers away again."""
        super().setup(cfg)
        for handler in list(self.error_log.handlers):
            self.error_log.removeHandler(handler)
        self.error_log.propagate = True
        for handler in self.access_log.handlers:
            if type(handler) is logging.StreamHandler:
                # Its lines are complete: what captures the stream would wrap them.
                handler.setStream(log.uncaptured(sys.stdout))
        if self.loglevel > logging.DEBUG:
            self.error_log.setLevel(max(self.loglevel, logging.WARNING))

    def access(self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta) -> None:
        """Write the line of an answered request."""
        if not self.access_log_enabled:
            return
        if self.cfg.access_log_format not in FORMATS:
            super().access(resp, req, environ, request_time)
            return
        found = fields(resp, environ, request_time)
        if self.cfg.access_log_format == JSON:
            line = _json(found | {"event": "access"})
        elif log.is_capturing():
            line = _json({"event": common(found), "request_id": found["request_id"]})
        else:
            line = common(found)
        self.access_log.info("%s", line)


def fields(resp: Any, environ: dict[str, Any], took: timedelta) -> dict[str, Any]:
    """Return what the access log says of an answer; None for what is not known."""
    headers = {name.lower(): value for name, value in resp.headers}
    path, _, query = environ.get("RAW_URI", "-").partition("?")
    return {
        "address": environ.get("REMOTE_ADDR") or None,
        "user": environ.get(USER),
        "method": environ.get("REQUEST_METHOD"),
        "path": path[:MAX_FIELD_CHARACTERS],
        "query": query[:MAX_FIELD_CHARACTERS] or None,
        "protocol": environ.get("SERVER_PROTOCOL"),
        "status": _status(resp.status),
        "bytes": resp.sent,
        "seconds": round(took.total_seconds(), 6),
        "agent": environ.get("HTTP_USER_AGENT", "")[:MAX_FIELD_CHARACTERS] or None,
        "request_id": headers.get(TRANSACTION),
    }


def common(found: dict[str, Any]) -> str:
    """Return the line of the Common Log Format; what would break it up is a question mark."""
    at = datetime.now(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    target = found["path"] + (f"?{found['query']}" if found["query"] else "")
    request_line = " ".join(_safe(word) for word in (found["method"], target, found["protocol"]))
    return (
        f'{_safe(found["address"])} - {_safe(found["user"])} [{at}] "{request_line}"'
        f" {_safe(found['status'])} {_safe(found['bytes'])}"
    )


def _json(found: dict[str, Any]) -> str:
    line = {
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "level": "info",
        "pid": os.getpid(),
        "process": "worker",
        **log.without_secrets(None, "info", found),
    }
    return orjson.dumps(line).decode()


def _status(status: Any) -> int | None:
    digits = str(status).partition(" ")[0]
    return int(digits) if digits.isdigit() else None


def _safe(value: Any) -> str:
    return "-" if value is None else _UNSAFE.sub("?", str(value)) or "-"
