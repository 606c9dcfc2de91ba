"""A tail of several topics at once: their feeds, taken from in turns, as one stream.

It is a stream like that of one topic: bounded with the others of its worker, and ended with them.
Between two receipts of its reader `topic` says which topic the last messages are of.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.model import Stored, TopicName
from router.services.consume import PollMailbox, WaitingClient
from router.services.read import MessageFeed, MessageStream, StartPosition, TopicReader


class TopicFeeds:
    """Messages of several topics, some of one topic at a time."""

    def __init__(
        self,
        reading: TopicReader,
        starts: Mapping[TopicName, Mapping[int, StartPosition]],
        mailbox: PollMailbox,
    ) -> None:
        self.feeds: dict[TopicName, MessageFeed] = {}
        self._turns = list(starts)
        self.topic = self._turns[0]
        try:
            for topic, places in starts.items():
                self.feeds[topic] = reading.feed(topic, places, mailbox)
        except BaseException:
            self.close()
            raise

    def take(self, limit: int, max_bytes: int) -> list[Stored]:
        """Return what is there of the next topic that has something, within the bounds."""
        for topic in list(self._turns):
            if found := self.feeds[topic].take(limit, max_bytes):
                self._turns.remove(topic)
                self._turns.append(topic)
                self.topic = topic
                return found
        return []

    def close(self) -> None:
        """Close all feeds; callable twice."""
        for feed in self.feeds.values():
            feed.close()


def watch(
    reading: TopicReader,
    starts: Mapping[TopicName, Mapping[int, StartPosition]],
    mailbox: PollMailbox,
    client: WaitingClient,
) -> MessageStream[TopicFeeds]:
    """Begin a stream of topics, at least one, which the caller closes.

    Raises TooManyRequestsError when the worker has as many as it may have, TopicNotFoundError.
    """
    reading.begin(mailbox)
    try:
        return MessageStream(reading, TopicFeeds(reading, starts, mailbox), mailbox, client)
    except BaseException:
        reading.ended(mailbox)
        raise
