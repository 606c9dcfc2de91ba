"""Every failure of the router, once: its class, its stable code, and whether a retry may help.

Dialects map codes to their own numbers in one table each; tests demand that those tables are
total.
"""

from __future__ import annotations

from typing import ClassVar


class RouterError(Exception):
    """Base of all failures that clients are told about; `str()` is a sentence for them."""

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip().partition("\n")[0])
        self.retry_after = retry_after


class BadRequestError(RouterError):
    """The request is malformed."""

    code = "bad-request"


class BadNameError(BadRequestError):
    """A topic, group or consumer name is not allowed."""

    code = "bad-name"


class BadFramingError(BadRequestError):
    """The body does not follow the framing that its content type promises."""

    code = "bad-framing"


class BadJsonError(BadRequestError):
    """The body is not the JSON that its content type promises."""

    code = "bad-json"


class BadCloudEventError(BadRequestError):
    """The request is not the CloudEvent that its content type or headers promise."""

    code = "bad-cloud-event"


class BadReadOptionError(BadRequestError):
    """A parameter of the query or the path, or the accepted format, cannot be read."""

    code = "bad-read-option"


class NotAcceptableError(RouterError):
    """The messages cannot be written in the format that was asked for."""

    code = "not-acceptable"


class UnsupportedEncodingError(RouterError):
    """The content encoding is none that the router reads."""

    code = "unsupported-encoding"


class BatchTooLargeError(RouterError):
    """The batch exceeds the size limit."""

    code = "batch-too-large"


class MessageTooLargeError(RouterError):
    """A message exceeds the size limit."""

    code = "message-too-large"


class ReadBodyTooLargeError(RouterError):
    """A reading request carries a body over the limit."""

    code = "read-body-too-large"


class MessageOverMaxBytesError(RouterError):
    """The next message alone is larger than the answer may be."""

    code = "message-over-max-bytes"


class UnauthenticatedError(RouterError):
    """The credentials are missing or wrong."""

    code = "unauthenticated"


class ForbiddenError(RouterError):
    """The principal has no right to do this."""

    code = "forbidden"


class AccessDeniedError(ForbiddenError):
    """The topic's owner, or an AAF permission, does not let the principal do this."""

    code = "access-denied"


class BlacklistedError(ForbiddenError):
    """The source address is blacklisted."""

    code = "blacklisted"


class KeyNotFoundError(RouterError):
    """There is no such API key, or it is not the one that signed the request."""

    code = "key-not-found"


class TopicNotFoundError(RouterError):
    """No such topic exists."""

    code = "topic-not-found"


class NamespaceNotFoundError(TopicNotFoundError):
    """No such tenant or namespace exists."""

    code = "namespace-not-found"


class SchemaNotFoundError(RouterError):
    """The topic has no such schema."""

    code = "schema-not-found"


class InvalidSchemaError(BadRequestError):
    """The definition is not one of its type of schema."""

    code = "invalid-schema"


class IncompatibleSchemaError(RouterError):
    """The topic's other schemas do not go together with this one."""

    code = "incompatible-schema"


class PayloadMismatchError(BadRequestError):
    """A message does not fit its schema."""

    code = "payload-mismatch"


class NotSupportedError(RouterError):
    """The backend cannot do this."""

    code = "not-supported"


class TopicExistsError(RouterError):
    """The topic exists already."""

    code = "topic-exists"


class SubscriptionNotFoundError(RouterError):
    """No such subscription exists."""

    code = "subscription-not-found"


class SubscriptionLimitError(RouterError):
    """The topic has as many subscriptions as it may have."""

    code = "subscription-limit"


class SubscriptionBusyError(RouterError):
    """Another poll holds this subscription; it will be free when that poll ends."""

    code = "subscription-busy"
    retriable = True


class FencedError(RouterError):
    """A newer claim on the partition exists; this acknowledgement was refused."""

    code = "fenced"


class TooManyRequestsError(RouterError):
    """The client makes too many requests."""

    code = "too-many-requests"
    retriable = True


class OverloadedError(RouterError):
    """The worker has as much under way as it may."""

    code = "overloaded"
    retriable = True


class PublishRefusedError(RouterError):
    """The backend refused to store the messages."""

    code = "publish-refused"
    retriable = True


class PartialPublishError(RouterError):
    """Only some of the messages were stored."""

    code = "partial-publish"
    retriable = True

    def __init__(self, message: str, *, stored: int) -> None:
        super().__init__(message)
        self.stored = stored


class BackendUnavailableError(RouterError):
    """The backend cannot be reached."""

    code = "backend-unavailable"
    retriable = True


class BackendTimeoutError(RouterError):
    """The backend did not answer in time."""

    code = "backend-timeout"
    retriable = True


class OutcomeUnknownError(BackendTimeoutError):
    """It is unknown whether the messages are stored."""

    code = "outcome-unknown"

    @classmethod
    def because(cls, reason: object) -> OutcomeUnknownError:
        """Return the failure with what kept the answer away."""
        return cls(f"{cls.__doc__} {reason}")


class ConsumerClosedError(BackendUnavailableError):
    """The store let go of this consumer, as after a reset; another one may be opened."""


class CoordinationUnavailableError(BackendUnavailableError):
    """The coordination between the nodes cannot be reached."""

    code = "coordination-unavailable"


class ReadFailedError(RouterError):
    """Stored messages could not be read."""

    code = "read-failed"


class DiskFullError(PublishRefusedError):
    """The disk of the node is full."""

    code = "disk-full"


class TopicTerminatedError(PublishRefusedError):
    """The topic was terminated: it takes no more messages."""

    code = "topic-terminated"
    retriable = False


class TopicHeldError(PublishRefusedError):
    """A producer has the topic for itself; others may publish when it goes."""

    code = "topic-held"


class QuotaExceededError(PublishRefusedError):
    """The backlog quota of the topic is used up."""

    code = "quota-exceeded"


class NotAllowedError(RouterError):
    """The operation is not allowed here."""

    code = "not-allowed"


def too_many_topics(limit: int) -> NotAllowedError:
    """Return the failure of creating a topic by its first use where there are so many already."""
    return NotAllowedError(
        f"There are {limit} topics or more, so none is created by its first use"
        " (topics.auto_max_topics); create it explicitly."
    )


class ConflictError(RouterError):
    """Somebody else changed it meanwhile, or it exists already."""

    code = "conflict"
    retriable = True


class ConsumerExistsError(ConflictError):
    """The subscription has a consumer of this name already."""

    code = "consumer-exists"
    retriable = False


class ConsumerNotFoundError(RouterError):
    """The subscription has no such consumer."""

    code = "consumer-not-found"


class MethodNotAllowedError(RouterError):
    """The resource does not support this method."""

    code = "method-not-allowed"


class PathNotFoundError(RouterError):
    """No such resource exists."""

    code = "path-not-found"


class MissingConsumerError(RouterError):
    """The URL of a poll names no group or no consumer id."""

    code = "missing-consumer"


class SettingError(RouterError):
    """A setting is unknown, or its value cannot be used."""

    code = "bad-setting"


def by_code() -> dict[str, type[RouterError]]:
    """Return every failure class by its stable code."""
    found: dict[str, type[RouterError]] = {}
    waiting: list[type[RouterError]] = [RouterError]
    while waiting:
        cls = waiting.pop()
        found.setdefault(cls.code, cls)  # a subclass without a code of its own stands back
        waiting.extend(cls.__subclasses__())
    return found


def from_code(code: str, message: str, retry_after: float | None = None) -> RouterError:
    """Rebuild a failure that another process reported as code and sentence."""
    cls = by_code().get(code, RouterError)
    if cls is PartialPublishError:
        return PartialPublishError(message, stored=0)
    return cls(message, retry_after=retry_after)
