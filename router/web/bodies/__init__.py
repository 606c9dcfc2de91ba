"""Formats of bodies: what a publisher sends becomes messages, and messages become an answer.

Which formats there are, and what they mean, is the DMaaP Message Router API's; where the original
is stricter or looser, the reading here is the one its documentation gives:
- text/plain: a line is a message (CR, LF, CRLF); empty lines are none, unlike in the original.
- application/json: objects, or arrays of objects, one after the other with any white space between
  them, newline-delimited JSON included. The text of each object is kept as it was sent.
- application/cambria: `<key length>.<message length>.<key><message>`, lengths in bytes.
- application/cambria-zip: the same, compressed with gzip.
- application/cloudevents+json, application/cloudevents-batch+json: one CloudEvent or an array.
- application/vnd.dragoman+ndjson: an object a line, with key, value and properties, as polls
  answer them in NDJSON (`router.wire.ndjson`).
- anything else: the whole body is one message.
"""

from __future__ import annotations

from router.web.bodies.answers import event_line, write
from router.web.bodies.inflate import PublishBounds, inflate
from router.web.bodies.reader import JSON, BodyReader, PublishBody, light, read
from router.wire.ndjson import line

__all__ = [
    "JSON",
    "BodyReader",
    "PublishBody",
    "PublishBounds",
    "event_line",
    "inflate",
    "light",
    "line",
    "read",
    "write",
]
