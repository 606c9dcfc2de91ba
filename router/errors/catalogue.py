"""What a client can do about each failure: the likely cause, and the remedy, by code.

The console shows remedies, `router explain` all of it, and docs/errors.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from router.errors import by_code

PAGE: Final = "docs/errors.md"


class Advice(NamedTuple):
    """The likely cause of a failure, and what to do; a sentence each."""

    cause: str
    remedy: str


class Explanation(NamedTuple):
    """All that is to say about one code; `page` is in the documentation, with its anchor."""

    code: str
    sentence: str
    cause: str
    remedy: str
    retriable: bool
    page: str


_CHECK_LIST: Final = "Check the list: it may be deleted, or its name may be spelled in another way."
_LATER: Final = "Try again in a moment; /ready says whether the router serves."
_RIGHTS: Final = (
    "Ask the topic's owner or an administrator for the right, or use other credentials."
)
_LESS: Final = "Send less at once, or raise the limit."

ADVICE: Final[Mapping[str, Advice]] = {
    "internal": Advice(
        "A defect of the router, or a failure that it does not know.",
        "The log of the router says why; the answer's transactionId finds the line.",
    ),
    "bad-setting": Advice(
        "A name or value in the configuration file, a ROUTER_ variable or an option is wrong.",
        "`router check` names the setting.",
    ),
    "bad-request": Advice(
        "A field or parameter is missing, or has another form than the route takes.",
        "Compare the request with its description at /docs.",
    ),
    "bad-name": Advice(
        "The name is empty or too long, or has a character that is not allowed.",
        "Names are 1 to 249 of A-Z a-z 0-9 . _ - and for groups : @ ~ + as well.",
    ),
    "bad-framing": Advice(
        "Lengths count characters instead of bytes, or the body was cut short or changed.",
        "Cambria is <key length>.<message length>.<key><message>, lengths in bytes.",
    ),
    "bad-json": Advice(
        "The body has a syntax error, or numbers, texts or nested arrays instead of objects.",
        "Send an object, or an array of objects.",
    ),
    "bad-cloud-event": Advice(
        "A required attribute is missing, or a value has another type than CloudEvents allows.",
        "Compare the event with the section CloudEvents of the documentation.",
    ),
    "bad-read-option": Advice(
        "A number has a unit or is negative, or an Ack-Token is of another answer.",
        "Leave the parameter out, or write it as the sentence says.",
    ),
    "not-acceptable": Advice(
        "A message has line breaks or bytes that the format has no place for.",
        "Ask for another format by Accept.",
    ),
    "unsupported-encoding": Advice(
        "Content-Encoding is neither gzip nor deflate, or the content type is not known.",
        "Send one of the content types and encodings that /docs names.",
    ),
    "batch-too-large": Advice(
        "The body exceeds `publish.max_batch` bytes or `publish.max_messages` messages.", _LESS
    ),
    "message-too-large": Advice(
        "A message exceeds `publish.max_message`, or the store's own limit.", _LESS
    ),
    "read-body-too-large": Advice(
        "The request reads, and has a body that no route needs.",
        "Send no body with a request that reads.",
    ),
    "message-over-max-bytes": Advice(
        "`maxBytes` is smaller than the next message, which stays in the group.",
        "Ask for more bytes.",
    ),
    "unauthenticated": Advice(
        "No credentials were sent, or the password, token or signature is wrong or out of date.",
        "Send the name and password of a user, or a token.",
    ),
    "forbidden": Advice(
        "The permissions file or an AAF permission does not give this right to the user.", _RIGHTS
    ),
    "access-denied": Advice(
        "The topic has an owner, and the user is not on its list.",
        _RIGHTS,
    ),
    "blacklisted": Advice(
        "An administrator has blocked the client's address or its network.",
        "Ask an administrator to take the address off the blacklist.",
    ),
    "key-not-found": Advice(
        "The API key was deleted, or another one signed the request.",
        _CHECK_LIST,
    ),
    "not-allowed": Advice(
        "A limit, a policy or the kind of the topic is against it.",
        "The topic or the backend does not take this; the sentence says why.",
    ),
    "topic-not-found": Advice(
        "The topic was never created, was deleted, or is in another namespace.",
        _CHECK_LIST,
    ),
    "internal-topic": Advice(
        "The name is that of a topic in which the store keeps data of its own.",
        "Use another topic; tools of the store itself show this one.",
    ),
    "namespace-not-found": Advice(
        "The tenant or namespace was never created; `namespaces.auto_create` is off.",
        "Create it with Pulsar's administration, or correct its name.",
    ),
    "value-not-found": Advice(
        "The key was never published or was deleted, or the position is behind the end.",
        "List the keys or read the positions that there are.",
    ),
    "schema-not-found": Advice(
        "The topic has no schema, or not this version.",
        "List the schemas of the topic, or register this one.",
    ),
    "invalid-schema": Advice(
        "The definition has a syntax error, or belongs to another schema type.",
        "Correct the definition; the sentence says where.",
    ),
    "incompatible-schema": Advice(
        "A field was removed or changed against the topic's compatibility strategy.",
        "Give new fields a default, or change the strategy of the namespace.",
    ),
    "payload-mismatch": Advice(
        "The message was made with another schema than the request or the topic names.",
        "Compare the message with the schemas of the topic.",
    ),
    "not-supported": Advice(
        "This store has no such operation.",
        "Another backend may do this; the documentation compares them.",
    ),
    "topic-exists": Advice(
        "Another client has created a topic of this name.",
        "Use the topic that there is, or another name.",
    ),
    "subscription-not-found": Advice(
        "The group was never used, was deleted, or was removed after `retention.groups`.",
        "A poll creates the group; check its name and its topic.",
    ),
    "subscription-limit": Advice(
        "Clients make a new group name for each run.", "Delete groups that are not used."
    ),
    "subscription-busy": Advice(
        "Another poll with the same id waits, or another consumer has the partition.",
        "Stop the consumers of the group, or wait until their polls end.",
    ),
    "fenced": Advice(
        "The consumer paused for so long that another one took over its partition.",
        "Poll again; what was not acknowledged is delivered again.",
    ),
    "too-many-requests": Advice(
        "The client polls with a short timeout, or guesses passwords.",
        "Wait as long as Retry-After says, and poll with a longer timeout.",
    ),
    "overloaded": Advice("Many large bodies or unread answers hold the worker's memory.", _LATER),
    "publish-refused": Advice(
        "The store is being closed, or refuses this topic.",
        "See the page of the topic and the log of the router.",
    ),
    "disk-full": Advice(
        "Less than `storage.reserve` is free on the disk of the data folder.",
        "Free space on the disk of the node, or shorten the retention.",
    ),
    "topic-terminated": Advice(
        "An administrator ended the topic for writing.", "Publish to another topic."
    ),
    "topic-held": Advice(
        "A Pulsar client opened an exclusive producer.",
        "Stop the producer that has the topic for itself.",
    ),
    "quota-exceeded": Advice(
        "A group has not acknowledged more than the topic's backlog quota allows.",
        "Raise the backlog quota, or let the groups catch up.",
    ),
    "partial-publish": Advice(
        "The store failed in the middle of a large request.",
        "Send what is missing again; the sentence says how many are stored.",
    ),
    "backend-unavailable": Advice(
        "The broker restarts, or Kafka or Pulsar cannot be reached.", _LATER
    ),
    "backend-timeout": Advice("The store or its disk is slow, or the network was cut.", _LATER),
    "outcome-unknown": Advice(
        "The connection to the store broke after the messages were sent.",
        "Repeat the request with its Idempotency-Key; without one check what is stored first.",
    ),
    "coordination-unavailable": Advice(
        "ZooKeeper cannot be reached, or the node's session with it is suspended.", _LATER
    ),
    "conflict": Advice(
        "Two clients changed the same thing, or the group was reset since the answer.",
        "Read it again and repeat what is still to be done.",
    ),
    "consumer-exists": Advice(
        "A consumer of this name was created and not deleted.", "Use another name, or delete it."
    ),
    "consumer-not-found": Advice(
        "The consumer was deleted, or removed because it was not used.", "Create it again."
    ),
    "read-failed": Advice(
        "A segment on the disk is damaged.", "Run `router check`, which checks the data folder."
    ),
    "method-not-allowed": Advice(
        "The path exists for other methods.", "Use a method of the header Allow."
    ),
    "missing-consumer": Advice(
        "The address ends after the topic or the group.",
        "Add a group and a consumer id to the address.",
    ),
    "path-not-found": Advice(
        "The address is spelled in another way, or the backend does not serve it.",
        "Begin at /console/, or see /docs for all paths.",
    ),
}


def explain(code: str) -> Explanation:
    """Return what there is to say about a code. Raises KeyError."""
    cls, advice = by_code()[code], ADVICE[code]
    sentence = (cls.__doc__ or "").partition("\n")[0]
    if code == "internal":
        sentence = "Any other failure."
    page = f"{PAGE}#{code}"
    return Explanation(code, sentence, advice.cause, advice.remedy, cls.retriable, page)
