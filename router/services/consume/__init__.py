"""One poll of a consumer group: claim partitions, receive, answer, acknowledge, release.

Theory of operation. A poll claims what its consumer id is assigned and opens a consumer on each
partition that is granted. It takes what is there at once; otherwise it waits on its mailbox, which
wakes for messages, for changes of the assignment, for a client that went away and for the worker's
stop. A partition that is assigned to another id goes back as soon as the poll finds it empty.

What was received is acknowledged only by `Poll.delivered`, which the server calls when its write
returned; `Poll.abandon` releases everything, and the messages come again. With `ack_next` nothing
is acknowledged then either: the positions go with the release, and the next claim of the same id
hands them back to be acknowledged first. The alternative, acknowledging before the answer, loses
what a broken connection swallows.

What a poll takes of its partitions is said by a `PollReader`: `services/fetch` brings its own.
Nothing here is kept between polls but which groups exist, so any worker may serve any poll.
"""

from __future__ import annotations

from router.services.consume.context import (
    Client,
    ClientGoneError,
    ConnectedClient,
    ConsumeOptions,
    PollMailbox,
    PollRequest,
)
from router.services.consume.partitions import OpenPartitions, PollReader
from router.services.consume.session import Poll, Subscriber

__all__ = [
    "Client",
    "ClientGoneError",
    "ConnectedClient",
    "ConsumeOptions",
    "OpenPartitions",
    "Poll",
    "PollMailbox",
    "PollReader",
    "PollRequest",
    "Subscriber",
]
