"""One poll of a consumer group: claim partitions, receive, answer, acknowledge, release.

Theory of operation. A poll claims what its consumer id is assigned and opens a consumer on each
partition that is granted. It takes what is there at once; otherwise it waits on its mailbox, which
wakes for messages, for changes of the assignment, for a client that went away and for the worker's
stop. A partition that is assigned to another id goes back as soon as the poll finds it empty.

What was received is acknowledged only by `AnsweredPoll.delivered`, which the server calls when its
write returned; `AnsweredPoll.abandon` releases everything, and the messages come again. With
`AckMode.NEXT` nothing is acknowledged then either: the positions go with the release, and the next
claim of the same id hands them back to be acknowledged first. Neither rule knows whether the client
has read its answer. With `AckMode.EXPLICIT` the client has to say so: the answer has a token
(`ack_tokens`), and a poll with that token acknowledges before it reads. The alternative,
acknowledging before the answer, loses what a broken connection swallows.

What a poll takes of its partitions is said by a `OpenPartitionReader`: `services/fetch` brings its
own. What is kept between polls, which groups exist and claims that are `retained` for a moment, is
given up for any other worker, so any worker may serve any poll.
"""

from __future__ import annotations

from router.services.consume.ack_tokens import AckTokens
from router.services.consume.context import (
    AckMode,
    ClientGoneError,
    ConnectedClient,
    ConsumeOptions,
    PollMailbox,
    PollRequest,
    WaitingClient,
)
from router.services.consume.partitions import OpenPartitionReader, OpenPartitions
from router.services.consume.session import AnsweredPoll, PollServer

__all__ = [
    "AckMode",
    "AckTokens",
    "AnsweredPoll",
    "ClientGoneError",
    "ConnectedClient",
    "ConsumeOptions",
    "OpenPartitionReader",
    "OpenPartitions",
    "PollMailbox",
    "PollRequest",
    "PollServer",
    "WaitingClient",
]
