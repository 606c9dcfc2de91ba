"""DIRECT.GET: messages of a stream that allows it, sent as they are, with their place in headers.

One message, several from a sequence or time on (`batch`), or the last one of each of several
subjects (`multi_last`). What cannot be served is a status: 404, 408 or 413, or of what failed.
"""

from __future__ import annotations

from typing import Final

from router.access.permissions import Right
from router.broker.nats.protocol.api import ApiCall, ApiRoute
from router.broker.nats.protocol.hub import Hub
from router.broker.nats.streams.api import find_message
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.log.subject_index import SubjectMatcher
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.errors import RouterError
from router.wire.nats import headers
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.jetstream.requests import MessageGetRequest
from router.wire.nats.jetstream.times import format_time
from router.wire.nats.message import NatsMessage

MAX_BATCH: Final = 1_000
MAX_BATCH_BYTES: Final = 16 << 20
MAX_LAST: Final = 1_024
"""Subjects of one `multi_last`."""
NOT_FOUND: Final = 404
BAD_REQUEST: Final = 408
TOO_MANY: Final = 413
END_OF_BATCH: Final = 204

_Headers = list[tuple[str, str]]


class DirectGet:
    """Handles the calls."""

    def __init__(self, streams: Streams, hub: Hub) -> None:
        self._streams = streams
        self._hub = hub

    def apis(self) -> tuple[ApiRoute, ...]:
        """Return the rows of the table."""
        return ApiRoute("DIRECT.GET.*", "", self.get), ApiRoute("DIRECT.GET.*.>", "", self.get_last)

    async def get(self, call: ApiCall) -> None:
        """Serve a request whose body says which messages."""
        stream = await self._open(call)
        if stream is None:
            return
        try:
            request = MessageGetRequest.read_direct(call.body)
        except ValueError as refusal:
            self._send_status(call, BAD_REQUEST, str(refusal))
            return
        await stream.settle()
        if request.multi_last:
            await self._send_last(call, stream, request)
        elif request.batch > 0:
            await self._send_batch(call, stream, request)
        else:
            self._send(call, stream, await find_message(stream, request))

    async def get_last(self, call: ApiCall) -> None:
        """Serve a request whose subject names that of the message."""
        stream = await self._open(call)
        if stream is None:
            return
        if call.body:
            self._send_status(call, BAD_REQUEST, "Bad Request")
            return
        request = MessageGetRequest(last_by_subj=call.names[1])
        self._send(call, stream, await find_message(stream, request))

    async def _open(self, call: ApiCall) -> Stream | None:
        """Return the stream; None: it does not serve such calls, as the caller has learned."""
        try:
            stream = self._streams.find(call.name)
            call.caller.authorize(stream.topic_name, Right.SUBSCRIBE)
            if stream.config.allow_direct:
                return await self._streams.open(call.name)
        except (JetStreamError, RouterError):
            pass
        if call.caller.no_responders:
            self._hub.no_responders(NatsMessage(call.subject, call.reply))
        return None

    async def _send_batch(self, call: ApiCall, stream: Stream, request: MessageGetRequest) -> None:
        sequence = max(1, request.seq)
        if request.start_time is not None:
            sequence = await stream.find_time(request.start_time)
        filters = (request.next_by_subj,) if request.next_by_subj else ()
        left = request.max_bytes if request.max_bytes > 0 else MAX_BATCH_BYTES
        pending = await stream.log.count_from(sequence, filters)
        last = sent = 0
        while sent < min(request.batch, MAX_BATCH) and left > 0:
            found = await stream.next_of_subject(sequence, filters)
            if found is None:
                break
            pending -= 1
            more = [("Nats-Num-Pending", str(pending)), ("Nats-Last-Sequence", str(last))]
            self._send(call, stream, found, more)
            left -= len(found.payload) + len(found.headers)
            last, sequence, sent = found.sequence, found.sequence + 1, sent + 1
        if not sent:
            self._send(call, stream, None)
            return
        end = [("Nats-Num-Pending", str(max(0, pending))), ("Nats-Last-Sequence", str(last))]
        self._send_status(call, END_OF_BATCH, "EOB", end)

    async def _send_last(self, call: ApiCall, stream: Stream, request: MessageGetRequest) -> None:
        if len(request.multi_last) > MAX_LAST:
            self._send_status(call, TOO_MANY, "Too Many Results")
            return
        up_to = request.up_to_seq or stream.log.last_sequence
        if request.up_to_time is not None:
            up_to = await stream.find_time(request.up_to_time) - 1
        sequences = await self._last_sequences(stream, request, up_to)
        if len(sequences) > MAX_LAST:
            self._send_status(call, TOO_MANY, "Too Many Results")
            return
        if not sequences:
            self._send_status(call, NOT_FOUND, "No Results")
            return
        left = request.max_bytes if request.max_bytes > 0 else MAX_BATCH_BYTES
        chosen = sequences[: request.batch] if request.batch > 0 else sequences
        last, pending = 0, len(sequences)
        for sequence in chosen:
            found = await stream.read(sequence)
            if found is None or left <= 0:
                continue
            pending -= 1
            more = [("Nats-Num-Pending", str(pending)), ("Nats-Last-Sequence", str(last))]
            self._send(call, stream, found, more)
            left -= len(found.payload) + len(found.headers)
            last = sequence
        end = [
            ("Nats-Num-Pending", str(pending)),
            ("Nats-Last-Sequence", str(last)),
            ("Nats-UpTo-Sequence", str(up_to)),
        ]
        self._send_status(call, END_OF_BATCH, "EOB", end)

    async def _last_sequences(
        self, stream: Stream, request: MessageGetRequest, up_to: int
    ) -> list[int]:
        """Return the last sequences of the subjects, of messages up to one sequence."""
        found = await stream.last_of_subjects(request.multi_last)
        if not found or found[-1] <= up_to:
            return found
        latest: dict[str, int] = {}
        bounds = stream.log.bounds(request.multi_last)
        matcher = SubjectMatcher(request.multi_last)
        async for messages in stream.log.scan(bounds[0] if bounds else 1, up_to):
            for message in messages:
                if matcher(message.subject):
                    latest[message.subject] = message.sequence
        return sorted(latest.values())

    def _send(
        self,
        call: ApiCall,
        stream: Stream,
        found: StoredMessage | None,
        more: _Headers | None = None,
    ) -> None:
        if found is None:
            self._send_status(call, NOT_FOUND, "Message Not Found")
            return
        place = [
            ("Nats-Stream", stream.name),
            ("Nats-Subject", found.subject),
            ("Nats-Sequence", str(found.sequence)),
            ("Nats-Time-Stamp", format_time(found.time_ns)),
            *(more or ()),
        ]
        block = headers.build(place)
        if found.headers:
            # The message's own headers come first, as at nats-server.
            block = found.headers[:-2] + block.split(b"\r\n", 1)[1]
        self._hub.publish(NatsMessage(call.reply, headers=block, payload=found.payload))

    def _send_status(
        self, call: ApiCall, code: int, text: str, more: _Headers | None = None
    ) -> None:
        block = headers.status(code, text, more or ())
        self._hub.publish(NatsMessage(call.reply, headers=block))
