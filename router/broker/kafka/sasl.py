"""SaslHandshake (17) and SaslAuthenticate (36): PLAIN and SCRAM, with the users of all listeners.

By PLAIN a client presents the name and password of a user, or any name and the password
`token:TOKEN`. By SCRAM it proves that it knows the password of a user that was added with
`--scram`. A client that is refused is sent the reason, and its connection closes.

After SaslHandshake of version 0 the client sends its tokens bare, each as a frame without the
request around it, until it is known. The answers are as bare, so a refusal has no reason in it.
librdkafka before 2.11.1 looks for version 0, and then uses version 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from router.access.scram import HASHES, ScramExchange
from router.broker.kafka.client import KafkaApi, KafkaClient, KafkaRequest
from router.broker.kafka.failures import ErrorCode, error_message
from router.broker.transport.authentication import BASIC, TOKEN
from router.errors import RouterError, TooManyRequestsError, UnauthenticatedError
from router.wire.kafka.frames import SIZE
from router.wire.kafka.runtime import KafkaMessage

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *HASHES)
TOKEN_PREFIX: Final = b"token:"
_PLAIN_FIELDS: Final = 3


class SaslState:
    """How far one client is with its authentication."""

    def __init__(self, _client: KafkaClient) -> None:
        self.mechanism = ""
        self.scram: ScramExchange | None = None


class BareToken(KafkaRequest):
    """A token without the request SaslAuthenticate around it; its answer is as bare."""

    __slots__ = ()

    def encode(self, response: KafkaMessage) -> bytes:
        """Return the frame of the token that answers, of a refusal nothing."""
        answer: Any = response
        token = bytes(answer.auth_bytes)
        return b"" if answer.error_code else SIZE.pack(len(token)) + token


def sasl_handshake(request: KafkaRequest) -> Any:
    """Answer whether a mechanism is served, and which are."""
    response = request.response(mechanisms=MECHANISMS)
    state = request.client.part(SaslState)
    if request.client.identity.known or state.scram is not None:
        response.error_code = ErrorCode.ILLEGAL_SASL_STATE
    elif request.body.mechanism not in MECHANISMS:
        response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    else:
        state.mechanism = request.body.mechanism
        request.client.sends_tokens = request.version == 0
    return response


def sasl_authenticate(request: KafkaRequest) -> Any:
    """Authenticate the client; the answer follows when its password is checked."""
    client = request.client
    state = client.part(SaslState)
    if client.identity.known or not state.mechanism:
        return request.response(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake comes before SaslAuthenticate, and each once",
        )
    client.refusal = partial(_refused, request)
    sent = bytes(request.body.auth_bytes)
    try:
        if state.mechanism == PLAIN:
            client.identity.authenticate(*_credentials(sent), partial(_welcome, request, b""))
        elif state.scram is None:
            answered = _begin_scram(request, state, sent)
            client.refusal = None
            return answered
        else:
            answer = state.scram.final(sent)
            welcome = partial(_welcome, request, answer)
            client.identity.admit_proved(state.scram.user, state.scram.proved, welcome)
    except RouterError as failure:
        client.identity.refuse(failure)
    return None


def _begin_scram(request: KafkaRequest, state: SaslState, sent: bytes) -> Any:
    """Return the answer to the first message of SCRAM; raise UnauthenticatedError."""
    authorizer, mechanism = request.client.identity.authorizer, state.mechanism
    assert authorizer is not None
    exchange = ScramExchange(lambda user: authorizer.scram_verifier(user, mechanism))
    answer = exchange.first(sent)
    state.scram = exchange
    return request.response(auth_bytes=answer)


def _credentials(sent: bytes) -> tuple[str, bytes]:
    """Return the method and data of what a client presents by PLAIN; raise UnauthenticatedError."""
    fields = sent.split(b"\0")
    if len(fields) == _PLAIN_FIELDS:
        acts_as, name, password = fields
        if acts_as in (b"", name) and b":" not in name:
            if password.startswith(TOKEN_PREFIX):
                return TOKEN, password.removeprefix(TOKEN_PREFIX)
            return BASIC, name + b":" + password
    raise UnauthenticatedError("This is no name and password by PLAIN.")


def _welcome(request: KafkaRequest, answer: bytes) -> None:
    request.client.refusal = None
    request.client.sends_tokens = False
    request.answer(request.response(auth_bytes=answer))


def _refused(request: KafkaRequest, failure: RouterError) -> bytes:
    # Kafka has one code for all refusals: our own client knows by the sentence which will pass.
    throttled = isinstance(failure, TooManyRequestsError)
    response = request.response(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
        error_message=error_message(failure) if throttled else str(failure),
    )
    return request.encode(response)


SASL_HANDSHAKE: Final = KafkaApi(17, "SaslHandshake", (0, 1), sasl_handshake, public=True)
SASL_AUTHENTICATE: Final = KafkaApi(36, "SaslAuthenticate", (0, 2), sasl_authenticate, public=True)
