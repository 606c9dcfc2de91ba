"""JSON that begins with a byte order mark is refused in every dialect, and the sentence says so."""

from __future__ import annotations

from codecs import BOM_UTF8
from urllib.parse import unquote

import pytest

from tests.unit.web.applications import Site

JSON = "application/json"


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/events/t", JSON, '{"a":1}'),
        ("/events/t", JSON, "[]"),
        ("/events/t", "application/cloudevents+json", "{}"),
        ("/events/t", "application/cloudevents-batch+json", "[]"),
        ("/events/t", "application/vnd.dragoman+ndjson", '{"value":"x"}'),
        ("/topics/create", JSON, '{"topicName":"made"}'),
        ("/apiKeys/create", JSON, "{}"),
        ("/topics/public/default/t", JSON, '{"messages":[{"value":"x"}]}'),
        ("/topics/public/default/t", JSON, '{"messages":[{"payload":"x"}]}'),
        ("/topics/public/default/t/subscription/s", JSON, '{"id":"c"}'),
        ("/jetstream/api/STREAM.CREATE.S", JSON, '{"name":"S"}'),
    ],
)
def test_byte_order_mark_is_named(site: Site, path: str, kind: str, body: str) -> None:
    data = BOM_UTF8 + body.encode()
    answer = site.client.post(path, data=data, content_type=kind)
    assert answer.status_code in {400, 422}, answer.text
    assert "begins with a byte order mark" in unquote(answer.text)
    assert site.backend.published == []
