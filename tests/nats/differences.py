"""The differences between the router's NATS listener and nats-server that clients observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Difference:
    """What a scenario shows on our broker, and why that is so.

    Of a recorded scenario `ours` holds only what differs, by the path to it: keys and indexes.
    """

    ours: Any
    why: str


_UNKNOWN = ["-ERR 'Unknown Protocol Operation'", "closed"]
_PAGE = {"error": [404, 10059], "total": 0, "offset": 0, "limit": 0}

DIFFERENCES: Final[dict[str, Difference]] = {
    "lines_of_the_protocol": Difference(
        {
            ("bad length",): _UNKNOWN,
            ("no length",): _UNKNOWN,
            ("too many arguments",): _UNKNOWN,
            ("hpub without headers",): _UNKNOWN,
        },
        "the client sees why",
    ),
    "purges": Difference(
        {
            (29, 1, "state", "first_seq"): 10,
            (29, 1, "state", "last_seq"): 9,
            (31, 1, "state", "first_seq"): 10,
            (31, 1, "state", "last_seq"): 9,
            (33, 1, "state", "first_seq"): 10,
            (33, 1, "state", "last_seq"): 9,
            (34, 1): 10,
            (35, 1, "state", "first_seq"): 10,
            (35, 1, "state", "last_seq"): 10,
        },
        "a purge up to a sequence that is not there yet does not skip numbers",
    ),
    "life_of_a_stream": Difference({(14, 1, "streams"): []}, "an empty list is `[]`"),
    "life_of_a_consumer": Difference(
        {
            (23, 1): _PAGE | {"type": "io.nats.jetstream.api.v1.consumer_names_response"},
            (24, 1): _PAGE | {"type": "io.nats.jetstream.api.v1.consumer_list_response"},
        },
        "a page of an error has no list",
    ),
}
