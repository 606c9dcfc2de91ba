"""The lists of topics that one connection watches: WATCH_TOPIC_LIST, and what is pushed for it.

Changes are gathered for PUSH_DELAY_SECONDS and pushed together, and only while the connection is
writable: what waits for a client that does not read is bounded by the number of topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from router.broker.pulsar.client import Handler, PulsarClient
from router.broker.pulsar.failures import error, request_failed
from router.broker.pulsar.patterns import PatternError
from router.broker.pulsar.topic_lists import TopicList, TopicLists
from router.errors import NotAllowedError, RouterError
from router.model import check_namespace
from router.wire.pulsar import Frame, command
from router.wire.pulsar import pulsar_pb2 as pb

MAX_WATCHERS: Final = 1_000
PUSH_DELAY_SECONDS: Final = 0.05
MAX_NAMES: Final = 4 << 20
"""Bytes of the names in one frame."""


class Watching:
    """What one connection watches."""

    def __init__(self, client: PulsarClient, lists: TopicLists) -> None:
        self._client = client
        self._connection = client.connection
        self._lists = lists
        self._watches: dict[int, _Watch] = {}
        self._due: asyncio.TimerHandle | None = None

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served here."""
        return {
            pb.BaseCommand.WATCH_TOPIC_LIST: self.watch,
            pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE: self.close,
        }

    def watch(self, frame: Frame) -> None:
        """Begin to watch, and answer the list unless the client has it.

        A number that watches already begins again: so clients find out what they missed.
        """
        request = frame.command.watchTopicList
        self._end(request.watcher_id)
        try:
            check_namespace(request.namespace)
            if len(self._watches) >= MAX_WATCHERS:
                raise NotAllowedError(f"a connection has at most {MAX_WATCHERS} watchers")
            watch = _Watch(self, request)
            watch.watched = self._lists.join(request.namespace, request.topics_pattern, watch)
            self._watches[request.watcher_id] = watch
            self._client.send(_success(request, watch.watched))
        except RouterError as failure:
            self._end(request.watcher_id)
            self._client.send(request_failed(request.request_id, failure))
        except PatternError as failure:
            sentence = f"Unable to create topic list watcher: {failure}"
            self._client.send(error(request.request_id, pb.NotAllowedError, sentence))

    def close(self, frame: Frame) -> None:
        """Watch no more; a number that does not watch is closed."""
        request = frame.command.watchTopicListClose
        self._end(request.watcher_id)
        self._client.send(command(pb.BaseCommand.SUCCESS, request_id=request.request_id))

    def close_all(self) -> None:
        """Watch nothing any more; the connection is closed."""
        if self._due is not None:
            self._due.cancel()
        for number in list(self._watches):
            self._end(number)

    def due(self) -> None:
        """Learn that a watcher has something to tell."""
        if self._due is None and not self._connection.closed:
            self._due = asyncio.get_running_loop().call_later(PUSH_DELAY_SECONDS, self._push)

    def _push(self) -> None:
        self._due = None
        for watch in self._watches.values():
            if not self._connection.writable:
                self._connection.when_writable(self.due)
                return
            for update in watch.take():
                self._client.send(update)

    def _end(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None:
            self._lists.leave(watch.namespace, watch.pattern, watch)


class _Watch:
    """One watcher, and what it was not told yet."""

    watched: TopicList

    def __init__(self, watching: Watching, request: pb.CommandWatchTopicList) -> None:
        self.number = request.watcher_id
        self.namespace = request.namespace
        self.pattern = request.topics_pattern
        self._watching = watching
        # What became of each topic, in order: whether it was there when last told, and is now.
        self._changes: dict[str, tuple[bool, bool]] = {}

    def changed(self, created: Sequence[str], deleted: Sequence[str]) -> None:
        """Keep what came and went until it is pushed."""
        for names, there in ((deleted, False), (created, True)):
            for name in names:
                before, _ = self._changes.pop(name, (not there, there))
                if before or there:
                    self._changes[name] = before, there
        self._watching.due()

    def take(self) -> list[pb.BaseCommand]:
        """Return what is to be told, in as many frames as it takes."""
        changes, self._changes = self._changes, {}
        updates: list[pb.CommandWatchTopicUpdate] = []
        size = MAX_NAMES + 1
        for name, (_, there) in changes.items():
            if size > MAX_NAMES:
                size = 0
                update = pb.CommandWatchTopicUpdate(
                    watcher_id=self.number, topics_hash=self.watched.hash
                )
                updates.append(update)
            (updates[-1].new_topics if there else updates[-1].deleted_topics).append(name)
            size += len(name)
        kind = pb.BaseCommand.WATCH_TOPIC_UPDATE
        return [pb.BaseCommand(type=kind, watchTopicUpdate=update) for update in updates]


def _success(request: pb.CommandWatchTopicList, found: TopicList) -> pb.BaseCommand:
    names = [] if request.topics_hash == found.hash else sorted(found.names)
    if sum(map(len, names)) > MAX_NAMES:
        raise NotAllowedError("these are more topics than one answer can name")
    return command(
        pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
        request_id=request.request_id,
        watcher_id=request.watcher_id,
        topic=names,
        topics_hash=found.hash,
    )
