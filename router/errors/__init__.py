"""All failures of the router: class, stable code, and whether a retry may help.

Each protocol maps the codes to its own numbers in one table; tests check that these tables are
complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

NOTHING_STORED: Final = "None of the messages is stored."
"""What a publish that ended in time without an outcome says, unless that is unknown."""


class RouterError(Exception):
    """Base of all failures that are reported to clients; `str()` is a sentence for them."""

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
    """The body does not follow the framing that its content type declares."""

    code = "bad-framing"


class BadJsonError(BadRequestError):
    """The body is not the JSON that its content type declares."""

    code = "bad-json"


class BadCloudEventError(BadRequestError):
    """The request is not the CloudEvent that its content type or headers declare."""

    code = "bad-cloud-event"


class BadReadOptionError(BadRequestError):
    """A parameter of the query or the path, or the requested format, is invalid."""

    code = "bad-read-option"


class NotAcceptableError(RouterError):
    """The messages cannot be written in the requested format."""

    code = "not-acceptable"


class UnsupportedEncodingError(RouterError):
    """The router does not support the content encoding."""

    code = "unsupported-encoding"


class BatchTooLargeError(RouterError):
    """The batch exceeds the size limit."""

    code = "batch-too-large"


class MessageTooLargeError(RouterError):
    """A message exceeds the size limit."""

    code = "message-too-large"


class ReadBodyTooLargeError(RouterError):
    """The body of a reading request exceeds the size limit."""

    code = "read-body-too-large"


class MessageOverMaxBytesError(RouterError):
    """The next message alone exceeds the size limit of the answer."""

    code = "message-over-max-bytes"


class UnauthenticatedError(RouterError):
    """The credentials are missing or wrong."""

    code = "unauthenticated"


class ForbiddenError(RouterError):
    """The principal has no permission to do this."""

    code = "forbidden"


class AccessDeniedError(ForbiddenError):
    """The topic's owner, or an AAF permission, does not allow the principal to do this."""

    code = "access-denied"


class ForeignPageError(ForbiddenError):
    """A page of another origin may have sent the request; credentials do not help."""


class BlacklistedError(ForbiddenError):
    """The source address is blacklisted."""

    code = "blacklisted"


class KeyNotFoundError(RouterError):
    """The API key does not exist, or it is not the one that signed the request."""

    code = "key-not-found"


class TopicNotFoundError(RouterError):
    """No such topic exists."""

    code = "topic-not-found"


class InternalTopicError(RouterError):
    """The topic belongs to the store itself; the router neither reads nor changes it."""

    code = "internal-topic"


class NamespaceNotFoundError(TopicNotFoundError):
    """No such tenant or namespace exists."""

    code = "namespace-not-found"


class ValueNotFoundError(RouterError):
    """A key of a compacted topic has no value, a position no message, or no transaction is open."""

    code = "value-not-found"


class SchemaNotFoundError(RouterError):
    """The topic has no such schema."""

    code = "schema-not-found"


class InvalidSchemaError(BadRequestError):
    """The definition is not valid for its schema type."""

    code = "invalid-schema"


class IncompatibleSchemaError(RouterError):
    """The schema is not compatible with the topic's other schemas."""

    code = "incompatible-schema"


class PayloadMismatchError(BadRequestError):
    """A message does not fit its schema."""

    code = "payload-mismatch"


class NotSupportedError(RouterError):
    """The backend does not support this operation."""

    code = "not-supported"


class TopicExistsError(RouterError):
    """The topic already exists."""

    code = "topic-exists"


class SubscriptionNotFoundError(RouterError):
    """No such subscription exists."""

    code = "subscription-not-found"


class SubscriptionLimitError(RouterError):
    """The topic has the maximum number of subscriptions."""

    code = "subscription-limit"


class SubscriptionBusyError(RouterError):
    """Another poll holds this subscription; it is free when that poll ends."""

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
    """The worker has reached its limit of work in progress."""

    code = "overloaded"
    retriable = True


class PublishRefusedError(RouterError):
    """The backend refused to store the messages."""

    code = "publish-refused"
    retriable = True


class EntryTooLargeError(PublishRefusedError):
    """A message exceeds what the backend stores of one: it never will."""


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


class NotServedError(BackendUnavailableError):
    """The backend cannot be used however long the caller waits."""


class CredentialsRefusedError(NotServedError):
    """The backend does not accept the credentials of the router, however often they are shown."""

    retriable = False


class BackendTimeoutError(RouterError):
    """The backend did not answer in time."""

    code = "backend-timeout"
    retriable = True

    def of_publish(self) -> BackendTimeoutError:
        """Return the failure of a publish: where it is not unknown, no message is stored."""
        message = str(self)
        return (
            self
            if NOTHING_STORED in message
            else BackendTimeoutError(f"{NOTHING_STORED} {message}")
        )


class OutcomeUnknownError(BackendTimeoutError):
    """It is unknown whether the messages are stored."""

    code = "outcome-unknown"

    def of_publish(self) -> BackendTimeoutError:
        """Return this failure, which says that the outcome is unknown."""
        return self

    @classmethod
    def because(cls, reason: object) -> OutcomeUnknownError:
        """Return the failure with the reason why no answer arrived."""
        return cls(f"{cls.__doc__} {reason}")


class ConsumerClosedError(BackendUnavailableError):
    """The store closed this consumer, as after a reset; another one may be opened."""


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
    """The topic was terminated: it accepts no more messages."""

    code = "topic-terminated"
    retriable = False


class TopicHeldError(PublishRefusedError):
    """A producer has exclusive access to the topic; others can publish when it is closed."""

    code = "topic-held"


class QuotaExceededError(PublishRefusedError):
    """The backlog quota of the topic is exhausted."""

    code = "quota-exceeded"


class NotAllowedError(RouterError):
    """The operation is not allowed here."""

    code = "not-allowed"


def over_max_bytes(size: int, max_bytes: int) -> MessageOverMaxBytesError:
    """Return the failure of a poll whose next message has more bytes than it asked for."""
    return MessageOverMaxBytesError(f"the next message has {size} bytes, maxBytes is {max_bytes}")


def too_many_topics(limit: int) -> NotAllowedError:
    """Return the failure of creating a topic by its first use at the limit of topics."""
    return NotAllowedError(
        f"There are {limit} topics or more, so none is created by its first use"
        " (topics.auto_max_topics); create it explicitly."
    )


class ConflictError(RouterError):
    """Another client changed it in the meantime, or it already exists."""

    code = "conflict"
    retriable = True

    @classmethod
    def overtaken(cls, partitions: Iterable[int]) -> ConflictError:
        """Return what answers an acknowledgement that came too late for these partitions."""
        numbers = ", ".join(str(max(0, partition)) for partition in sorted(partitions))
        return cls(
            f"Not acknowledged in partition {numbers}: the group was reset, its broker was"
            " restarted, or another consumer has the partition since that answer. What was not"
            " acknowledged before is delivered again."
        )


class ConsumerExistsError(ConflictError):
    """The subscription already has a consumer of this name."""

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
    """The URL of a poll has no group or no consumer id."""

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
        found.setdefault(
            cls.code, cls
        )  # a subclass without a code of its own does not replace its base
        waiting.extend(cls.__subclasses__())
    return found


def from_code(code: str, message: str, retry_after: float | None = None) -> RouterError:
    """Return the failure that another process reported as code and sentence."""
    cls = by_code().get(code, RouterError)
    if cls is PartialPublishError:
        return PartialPublishError(message, stored=0)
    return cls(message, retry_after=retry_after)
