"""The calls of the JetStream API about streams and their messages, and about the account.

A stream that the caller may not view is answered as one that is not there, and left out of lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from router.access.permissions import Right
from router.broker.nats.protocol.api import ApiCall, ApiRoute
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.replies import (
    MAX_INFOS,
    MAX_NAMES,
    AccountInfo,
    ListPage,
    MessageReply,
    PagedReply,
    Purged,
    StreamInfo,
    StreamInfoPage,
    Success,
)
from router.wire.nats.jetstream.requests import (
    MessageDeleteRequest,
    MessageGetRequest,
    PurgeRequest,
    StreamConfigRequest,
    StreamInfoRequest,
    StreamPageRequest,
)
from router.wire.nats.jetstream.stream_rules import check_stream_create, check_stream_update

MAX_SUBJECTS: Final = 100_000
"""Subjects in one page of a stream's description."""


class StreamApi:
    """Handles the calls; `counts` returns how many calls there were, and how many failed."""

    def __init__(self, streams: Streams, counts: Callable[[], tuple[int, int]]) -> None:
        self._streams = streams
        self._counts = counts

    def apis(self) -> tuple[ApiRoute, ...]:
        """Return the rows of the table."""
        return (
            ApiRoute("INFO", "account_info", self.account),
            ApiRoute("STREAM.CREATE.*", "stream_create", self.create),
            ApiRoute("STREAM.UPDATE.*", "stream_update", self.update),
            ApiRoute("STREAM.INFO.*", "stream_info", self.info),
            ApiRoute("STREAM.NAMES", "stream_names", self.names),
            ApiRoute("STREAM.LIST", "stream_list", self.list_streams),
            ApiRoute("STREAM.DELETE.*", "stream_delete", self.delete),
            ApiRoute("STREAM.PURGE.*", "stream_purge", self.purge),
            ApiRoute("STREAM.MSG.GET.*", "stream_msg_get", self.get_message),
            ApiRoute("STREAM.MSG.DELETE.*", "stream_msg_delete", self.delete_message),
        )

    async def account(self, call: ApiCall) -> AccountInfo:
        """INFO: what the streams that the caller may view hold together."""
        streams = [self._streams.find(name) for name in self._visible(call)]
        total, errors = self._counts()
        return AccountInfo(
            storage=sum(stream.log.bytes for stream in streams),
            streams=len(streams),
            consumers=sum(len(stream.consumers) for stream in streams),
            api_total=total,
            api_errors=errors,
        )

    async def create(self, call: ApiCall) -> StreamInfo:
        """STREAM.CREATE: a stream, made if there is none of this configuration."""
        config = check_stream_create(call.name, StreamConfigRequest.read(call.body))
        stream = await self._streams.create(config, call.caller)
        info = await stream.info()
        return StreamInfo(info.config, info.created, info.state, info.ts, did_create=True)

    async def update(self, call: ApiCall) -> StreamInfo:
        """STREAM.UPDATE: a stream with another configuration."""
        request = StreamConfigRequest.read(call.body)
        config = check_stream_update(call.name, request)
        stream = await self._streams.update(config, call.caller, pedantic=request.pedantic)
        return await stream.info()

    async def info(self, call: ApiCall) -> StreamInfoPage:
        """STREAM.INFO: configuration and state, with subjects and deleted sequences on request."""
        stream = await self._open(call, Right.VIEW)
        request = StreamInfoRequest.read(call.body)
        info = await stream.info(
            deleted_details=request.deleted_details, subjects_filter=request.subjects_filter
        )
        if not request.subjects_filter:
            return StreamInfoPage(info)
        subjects = info.state.subjects
        page = PagedReply.of(len(subjects), request.offset, MAX_SUBJECTS)
        shown = {name: subjects[name] for name in page.part(sorted(subjects))}
        return StreamInfoPage(replace(info, state=replace(info.state, subjects=shown)), page)

    def names(self, call: ApiCall) -> ListPage:
        """STREAM.NAMES: a page of the names of streams."""
        request = StreamPageRequest.read(call.body)
        names = self._visible(call, request.subject)
        page = PagedReply.of(len(names), request.offset, MAX_NAMES)
        return ListPage("streams", page.part(names), page)

    async def list_streams(self, call: ApiCall) -> ListPage:
        """STREAM.LIST: a page of streams."""
        request = StreamPageRequest.read(call.body)
        names = self._visible(call, request.subject)
        page, found = PagedReply.of(len(names), request.offset, MAX_INFOS), []
        for name in page.part(names):
            try:
                found.append(await (await self._streams.open(name)).info())
            except JetStreamError:
                continue  # it was deleted meanwhile
        return ListPage("streams", found, page)

    async def delete(self, call: ApiCall) -> Success:
        """STREAM.DELETE: a stream with its topic."""
        self._find(call)
        await self._streams.delete(call.name, call.caller)
        return Success()

    async def purge(self, call: ApiCall) -> Purged:
        """STREAM.PURGE: messages up to a sequence, of a subject, or but the newest."""
        stream = await self._open(call, Right.MANAGE)
        request = PurgeRequest.read(call.body)
        config = stream.config
        if config.sealed:
            raise error(ErrorCode.STREAM_SEALED)
        if config.deny_purge:
            raise error(ErrorCode.STREAM_PURGE_FAILED, err="stream purge not permitted")
        await stream.settle()
        log = stream.log
        end = request.seq or log.last_sequence + 1
        if request.filter:
            filters = (request.filter,)
            count = await log.count_from(log.first_sequence, filters)
            purged = await log.delete_matching(filters, end, max(0, count - request.keep))
        elif request.keep:
            first = log.sequence_before_newest(request.keep)
            purged = await log.delete_range(log.first_sequence, first - 1)
        elif request.seq:
            purged = await log.delete_range(log.first_sequence, min(end, log.last_sequence + 1) - 1)
        else:
            purged = await log.delete_all()
        return Purged(purged)

    async def get_message(self, call: ApiCall) -> MessageReply:
        """STREAM.MSG.GET: a message by its sequence, or the last or next one of a subject."""
        self._find(call)
        request = MessageGetRequest.read(call.body)
        stream = await self._open(call, Right.SUBSCRIBE)
        found = await find_message(stream, request)
        if found is None:
            raise error(ErrorCode.NO_MESSAGE_FOUND)
        block = b"" if request.no_hdr else found.headers
        return MessageReply(found.subject, found.sequence, block, found.payload, found.time_ns)

    async def delete_message(self, call: ApiCall) -> Success:
        """STREAM.MSG.DELETE: one message; readers of no dialect are sent it any more."""
        self._find(call)
        request = MessageDeleteRequest.read(call.body)
        stream = await self._open(call, Right.MANAGE)
        if stream.config.sealed:
            raise error(ErrorCode.STREAM_SEALED)
        if stream.config.deny_delete:
            raise error(ErrorCode.STREAM_MSG_DELETE_FAILED, err="message delete not permitted")
        await stream.settle()
        if not 0 < request.seq <= stream.log.last_sequence:
            raise error(ErrorCode.STREAM_MSG_DELETE_FAILED, err="stream store EOF")
        found = await stream.read(request.seq)
        if found is None:
            raise error(ErrorCode.SEQUENCE_NOT_FOUND, seq=request.seq)
        if not await stream.log.delete_durably([found]):  # another call was faster
            raise error(ErrorCode.SEQUENCE_NOT_FOUND, seq=request.seq)
        return Success()

    def _find(self, call: ApiCall) -> Stream:
        """Return the stream of a call; raise JetStreamError 10059 if it may not be viewed."""
        stream = self._streams.find(call.name)
        if not call.caller.may(stream.topic_name, Right.VIEW):
            raise error(ErrorCode.STREAM_NOT_FOUND)
        return stream

    async def _open(self, call: ApiCall, right: Right) -> Stream:
        stream = self._find(call)
        if right is not Right.VIEW:
            call.caller.authorize(stream.topic_name, right)
        return await self._streams.open(call.name)

    def _visible(self, call: ApiCall, subject: str = "") -> list[str]:
        """Return the names of the streams that the caller may view, and that take a subject."""
        streams = self._streams
        found = []
        for name in streams.having_subject(subject) if subject else streams.names():
            topic = streams.stream_topics.topic_name(name)
            if topic is not None and call.caller.may(topic, Right.VIEW):
                found.append(name)
        return found


async def find_message(stream: Stream, request: MessageGetRequest) -> StoredMessage | None:
    """Return the message that a request names; None: there is none."""
    await stream.settle()
    if request.last_by_subj:
        return await stream.log.last_of_subject((request.last_by_subj,))
    first = request.seq
    if request.start_time is not None:
        first = await stream.find_time(request.start_time)
    if request.next_by_subj:
        return await stream.log.next_of_subject(max(1, first), (request.next_by_subj,))
    if request.start_time is not None:
        found = await stream.read_from(first, 1, 1)
        return found[0] if found else None
    return await stream.read(first)
