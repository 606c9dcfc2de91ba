"""The JetStream API over HTTP: its subjects as paths, its answers as JSON objects of one type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.clocks.steps import run_blocking
from router.errors import BackendTimeoutError
from router.errors.quoting import json_failure
from router.services.jetstream import API_PREFIX
from router.services.jetstream.calls import READS, JetStreamCall, call_of
from router.web import forms as answers
from router.web import requests
from router.web.jetstream import shapes
from router.web.jetstream.context import (
    MAX_BODY_BYTES,
    FaultError,
    JetStreamCaller,
    JetStreamContext,
    status_of,
)
from router.web.jetstream.forms import Fault, Form, form_of
from router.web.openapi import description as api
from router.wire.nats.headers import NO_RESPONDERS
from router.wire.nats.jetstream.errors import ErrorCode
from router.wire.nats.message import NatsMessage

_READS: Final = re.compile(rf"(?:{READS})|STREAM\.MSG\.GET\..*")
MAX_OVERLAPS: Final = 16
"""Subjects of a refused stream whose streams are looked for."""


class ApiViews:
    """The views of the API."""

    def __init__(self, context: JetStreamContext) -> None:
        self._context = context

    @api.operation(
        "GET /jetstream/api/<jetstream_read:subject>",
        *shapes.FORM,
        answers=shapes.ANSWERED,
        fails=(*api.STORE, "method-not-allowed"),
        refuses=shapes.REFUSED,
        notes="The subject is what follows `$JS.API.`; of the calls those that read, such as"
        " `STREAM.INFO.ORDERS`, `STREAM.LIST` and `STREAM.NAMES`.",
    )
    def read(self, subject: str) -> Response:
        """Answer a call of the JetStream API that changes nothing."""
        requests.no_body(request.environ, MAX_BODY_BYTES)
        return self._answer(subject, b"")

    @api.operation(
        "POST /jetstream/api/<subject>",
        *shapes.FORM,
        body=shapes.CALL,
        answers=shapes.ANSWERED,
        fails=(*api.STORE, *api.APPEND, "bad-json"),
        refuses=shapes.REFUSED,
        notes="The subject is what follows `$JS.API.`, such as `STREAM.CREATE.ORDERS`.",
    )
    def call(self, subject: str) -> Response:
        """Answer a call of the JetStream API: streams, consumers and messages."""
        return self._answer(subject, None)

    def _answer(self, subject: str, body: bytes | None) -> Response:
        context, environ = self._context, request.environ
        form = form_of(environ)
        caller = context.caller(environ)
        call = call_of(requests.decode(subject))
        if body is None:
            body = context.body(environ, context.options.max_payload)
        if call.fault is not None:
            raise FaultError.of_error(call.fault)
        if not body.strip():
            body = b"{}"
        elif form is Form.SEED:
            _check_object(body)
        subject = call.subject if form is Form.V1 else call.seed_subject
        payload = self._call(caller, environ, subject, body)
        reply = orjson.loads(payload)
        if "error" in reply:
            return self._failed(call, form, caller, environ, payload, reply, body)
        if form is Form.V1:
            return Response(payload, mimetype=api.JSON)
        return answers.answer(context.writer.seed(call, reply))

    def _failed(
        self,
        call: JetStreamCall,
        form: Form,
        caller: JetStreamCaller,
        environ: WSGIEnvironment,
        payload: bytes,
        reply: Mapping[str, Any],
        body: bytes,
    ) -> Response:
        """Answer an error of the API, in the body of whose type it is."""
        fault = Fault.of_json(reply["error"])
        if form is Form.V1:
            return Response(payload, status=fault.status, mimetype=api.JSON)
        if fault.err_code == ErrorCode.STREAM_SUBJECT_OVERLAP:
            fault = self._with_names(fault, call, caller, environ, body)
        return answers.answer(self._context.writer.fault(call, fault, form), fault.status)

    def _with_names(
        self,
        fault: Fault,
        call: JetStreamCall,
        caller: JetStreamCaller,
        environ: WSGIEnvironment,
        body: bytes,
    ) -> Fault:
        """Return the error of overlapping subjects with the names of the streams that have them."""
        names: set[str] = set()
        for subject in orjson.loads(body).get("subjects", ())[:MAX_OVERLAPS]:
            criteria = orjson.dumps({"subject": subject})
            reply = orjson.loads(self._call(caller, environ, "STREAM.NAMES", criteria))
            names.update(reply.get("streams") or ())
        names.discard(call.stream)
        if not names:
            return fault
        return fault._replace(sentence=f"{fault.sentence}: {', '.join(sorted(names))}")

    def _call(
        self, caller: JetStreamCaller, environ: WSGIEnvironment, subject: str, body: bytes
    ) -> bytes:
        """Return the answer of a call in the form `v1`."""
        message = NatsMessage(API_PREFIX + subject, payload=body)
        reads = _READS.fullmatch(subject) is not None
        replies = run_blocking(self._context.ask(environ, caller, message, reads=reads))
        if not replies:
            raise BackendTimeoutError
        if status_of(replies[0])[0] == NO_RESPONDERS:
            raise FaultError.of_code(ErrorCode.NOT_ENABLED)
        return replies[0].payload


def _check_object(body: bytes) -> None:
    """Raise FaultError for what is no JSON object."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FaultError.of_code(ErrorCode.INVALID_JSON, err=json_failure(body, error)) from error
    if not isinstance(found, dict):
        raise FaultError.of_code(ErrorCode.INVALID_JSON, err="expected an object")
