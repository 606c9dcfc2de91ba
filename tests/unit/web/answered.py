"""A corpus of requests without CloudEvents, and what the router answers to them.

`python -m tests.unit.web.answered` writes the answers anew, from the code as it is.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Final

from tests.unit.web.applications import Site

GOLDEN: Final = Path(__file__).parent / "golden" / "answers.json"
_VARYING: Final = re.compile(
    r'("(?:serverTimeMs|publish_time)":)\d+|("trans\w+":")[^"]*|\d\d-\d\d-\d{4}::\S+', re.IGNORECASE
)
_TEXT: Final = {"Content-Type": "text/plain"}
_JSON: Final = {"Content-Type": "application/json"}
_BODIES: Final[tuple[tuple[dict[str, str], bytes], ...]] = (
    (_TEXT, b"a\nb\r\n\nc"),
    (_JSON, b'[{"a": 1}, {"specversion":"1.0","id":"1","source":"/s","type":"t"}]'),
    (_JSON, b'{"cambria.partition": "k", "b": "\xc3\xa9"}'),
    (_JSON, b"[1]"),
    (_JSON, b'{"a":NaN}'),
    (_JSON, b"{} x"),
    (_JSON, b'{"a":' + b"[" * 501 + b"]" * 501 + b"}"),
    ({"Content-Type": "application/cambria"}, b"1.2.kab0.1.c"),
    ({"Content-Type": "application/cambria"}, b"1.9.kab"),
    ({"Content-Type": "application/cambria-zip"}, gzip.compress(b"1.2.kab", mtime=0)),
    ({"Content-Type": "application/xml"}, b"<a>\n</a>"),
    ({}, b"\xff\x00raw"),
    ({"Content-Type": "text/plain", "Content-Encoding": "gzip"}, gzip.compress(b"z", mtime=0)),
    ({"Content-Type": "text/plain", "Content-Encoding": "br"}, b"z"),
    ({"Content-Type": "text/plain", "Idempotency-Key": "one"}, b"once"),
    ({"Content-Type": "text/plain", "Idempotency-Key": "one"}, b"once"),
    ({"Content-Type": "text/plain", "cecilia": "x", "X-Ce-Id": "7"}, b"unlike"),
    (_TEXT, b""),
)
_ACCEPTS: Final = (
    None,
    "*/*",
    "*",
    "application/json",
    "application/*",
    "application/cambria",
    "application/x-ndjson",
    "text/plain",
    "text/*;q=0.5, application/json;q=0.4",
    "text/html",
    "application/json;q=2",
    "nonsense",
    "application/json;q=0",
)


def answers() -> list[list[object]]:
    """Return method, path and headers of each request of the corpus, and its answer."""
    site = Site({})
    found: list[list[object]] = []

    def ask(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        answer = site.client.open(path, method=method, headers=headers, data=body, buffered=True)
        kept = sorted(
            (name, value) for name, value in answer.headers if name.lower() != "transactionid"
        )
        text = _VARYING.sub(lambda match: (match[1] or match[2] or "") + "…", answer.text)
        fields = [f"{name}: {value}" for name, value in kept if name != "Content-Length"]
        found.append([method, path, headers, answer.status_code, fields, text])

    for number, (headers, body) in enumerate(_BODIES):
        ask("POST", f"/events/t{number % 3}?partitionKey=p", headers, body)
        ask("POST", "/events/transaction/t0", headers, body)
    for number, accept in enumerate(_ACCEPTS):
        headers = {} if accept is None else {"Accept": accept}
        for kind in ("", "application/x-ndjson"):
            sent = headers | ({"Content-Type": kind} if kind else {})
            for topic in ("t0", "absent"):
                path = f"/events/{topic}/g{number}{len(kind)}/c"
                ask("GET", f"{path}?from=earliest&timeout=0&limit=3", sent)
            ask("HEAD", f"/events/absent/g{number}{len(kind)}/c", sent)
    ask("GET", "/events/t0", {})
    ask("GET", "/events/t0/g", {})
    site.close()
    return found


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    lines = (json.dumps(answer, ensure_ascii=False) for answer in answers())
    GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")
