"""What helps after each failure, as problem documents and pages say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_REQUEST: Final = "Compare the request with its description at /docs."
_LATER: Final = "Try again in a moment; /ready says whether the router serves."
_RIGHTS: Final = (
    "Ask the topic's owner or an administrator for the right, or use other credentials."
)
_LIST: Final = "Look at the list: it may have been deleted, or its name is written otherwise."
_SIZE: Final = "Send less at once."
_STORE: Final = "Look at the page of the topic and at the log of the router."
_SCHEMA: Final = "Look at the schemas of the topic."

HINTS: Final[Mapping[str, str]] = {
    "internal": "The log of the router says why; the answer's transactionId finds the line.",
    "bad-setting": "`router check` names the setting.",
    "bad-request": _REQUEST,
    "bad-name": "Names are 1 to 249 of A-Z a-z 0-9 . _ - and for groups : @ ~ + as well.",
    "bad-framing": "Cambria is <key length>.<message length>.<key><message>, lengths in bytes.",
    "bad-json": "Send an object, or an array of objects.",
    "bad-cloud-event": "Compare the event with the section CloudEvents of the documentation.",
    "bad-read-option": "Leave the parameter out, or write it as the sentence says.",
    "not-acceptable": "Ask for another format by Accept.",
    "unsupported-encoding": "Send one of the content types and encodings that /docs names.",
    "batch-too-large": _SIZE,
    "message-too-large": _SIZE,
    "read-body-too-large": "Send no body with a request that reads.",
    "message-over-max-bytes": "Ask for more bytes.",
    "unauthenticated": "Send the name and password of a user, or a token.",
    "forbidden": _RIGHTS,
    "access-denied": _RIGHTS,
    "blacklisted": "Ask an administrator to take the address off the blacklist.",
    "key-not-found": _LIST,
    "not-allowed": "The topic or the backend does not take this; the sentence says why.",
    "topic-not-found": _LIST,
    "namespace-not-found": _LIST,
    "schema-not-found": _SCHEMA,
    "invalid-schema": _SCHEMA,
    "incompatible-schema": _SCHEMA,
    "payload-mismatch": _SCHEMA,
    "not-supported": "Another backend may do this; the documentation compares them.",
    "topic-exists": "Use the topic that there is, or another name.",
    "subscription-not-found": _LIST,
    "subscription-limit": "Delete groups that are not used.",
    "subscription-busy": "Stop the consumers of the group, or wait until their polls end.",
    "fenced": _LATER,
    "too-many-requests": "Wait as long as Retry-After says.",
    "overloaded": _LATER,
    "publish-refused": _STORE,
    "disk-full": "Free space on the disk of the node, or shorten the retention.",
    "topic-terminated": "Publish to another topic.",
    "topic-held": "Stop the producer that has the topic for itself.",
    "quota-exceeded": "Raise the backlog quota, or let the groups catch up.",
    "partial-publish": "Send what is missing again; the sentence says how many are stored.",
    "backend-unavailable": _LATER,
    "backend-timeout": _LATER,
    "outcome-unknown": "Look whether the messages are there before sending them again.",
    "coordination-unavailable": _LATER,
    "conflict": "Load the page again and repeat what is still to be done.",
    "consumer-exists": "Use another name.",
    "consumer-not-found": _LIST,
    "read-failed": "`router check` looks at the data folder.",
    "method-not-allowed": "Use a method of the header Allow.",
    "missing-consumer": "Add a group and a consumer id to the address.",
    "path-not-found": "Begin at /console/, or look at /docs for what there is.",
}
