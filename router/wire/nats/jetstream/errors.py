"""The errors of the JetStream API that the router returns: code, status and description.

Codes and descriptions are the interface of nats-server 2.15 (`server/errors.json`): clients compare
the codes, and people know the descriptions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final


class ErrorCode(IntEnum):
    """An `err_code` of JetStream, with its description, and its status after HTTP if it is not 400.

    A description may have fields in braces, which `error` fills in.
    """

    http_status: int
    description: str

    def __new__(cls, value: int, description: str, http_status: int = 400) -> ErrorCode:
        """Return the member; enum calls this once per line below."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.http_status = http_status
        member.description = description
        return member

    BAD_REQUEST = 10003, "bad request"
    CONSUMER_CREATE = 10012, "{err}", 500
    CONSUMER_NAME_EXIST = 10013, "consumer name already in use"
    CONSUMER_NOT_FOUND = 10014, "consumer not found", 404
    SNAPSHOT_DELIVER_SUBJECT_INVALID = 10015, "deliver subject not valid"
    CONSUMER_DURABLE_NAME_NOT_IN_SUBJECT = (
        10016,
        "consumer expected to be durable but no durable name set in subject",
    )
    CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT = (
        10017,
        "consumer name in subject does not match durable name in request",
    )
    CONSUMER_DURABLE_NAME_NOT_SET = (
        10018,
        "consumer expected to be durable but a durable name was not set",
    )
    CONSUMER_EPHEMERAL_WITH_DURABLE_NAME = (
        10020,
        "consumer expected to be ephemeral but a durable name was set in request",
    )
    INVALID_JSON = 10025, "invalid JSON: {err}"
    MAXIMUM_CONSUMERS_LIMIT = 10026, "maximum consumers limit reached"
    MIRROR_CONSUMER_SETUP_FAILED = 10029, "{err}", 500
    MIRROR_WITH_SOURCES = 10031, "stream mirrors can not also contain other sources"
    MIRROR_WITH_SUBJECTS = 10034, "stream mirrors can not contain subjects"
    NO_MESSAGE_FOUND = 10037, "no message found", 404
    NOT_ENABLED_FOR_ACCOUNT = 10039, "JetStream not enabled for account", 503
    SEQUENCE_NOT_FOUND = 10043, "sequence {seq} not found"
    SOURCE_CONSUMER_SETUP_FAILED = 10045, "{err}", 500
    STORAGE_RESOURCES_EXCEEDED = 10047, "insufficient storage resources available", 500
    STREAM_INVALID_CONFIG = 10052, "{err}", 500
    STREAM_MESSAGE_EXCEEDS_MAXIMUM = 10054, "message size exceeds maximum allowed"
    STREAM_MISMATCH = 10056, "stream name in subject does not match request"
    STREAM_MSG_DELETE_FAILED = 10057, "{err}", 500
    STREAM_NAME_EXIST = 10058, "stream name already in use with a different configuration"
    STREAM_NOT_FOUND = 10059, "stream not found", 404
    STREAM_NOT_MATCH = 10060, "expected stream does not match"
    STREAM_RESTORE = 10062, "restore failed: {err}", 500
    STREAM_SNAPSHOT = 10064, "snapshot failed: {err}", 500
    STREAM_SUBJECT_OVERLAP = 10065, "subjects overlap with an existing stream"
    STREAM_WRONG_LAST_MSG_ID = 10070, "wrong last msg ID: {id}"
    STREAM_WRONG_LAST_SEQUENCE = 10071, "wrong last sequence: {seq}"
    STREAM_REPLICAS_NOT_SUPPORTED = 10074, "replicas > 1 not supported in non-clustered mode", 500
    NOT_ENABLED = 10076, "JetStream not enabled", 503
    STREAM_STORE_FAILED = 10077, "{err}", 503
    CONSUMER_DELIVER_TO_WILDCARDS = 10079, "consumer deliver subject has wildcards"
    CONSUMER_PUSH_MAX_WAITING = 10080, "consumer in push mode can not set max waiting"
    CONSUMER_DELIVER_CYCLE = 10081, "consumer deliver subject forms a cycle"
    CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED = (
        10082,
        "consumer requires ack policy for max ack pending",
    )
    CONSUMER_SMALL_HEARTBEAT = 10083, "consumer idle heartbeat needs to be >= 100ms"
    CONSUMER_PULL_REQUIRES_ACK = (
        10084,
        "consumer in pull mode requires explicit ack policy on workqueue stream",
    )
    CONSUMER_PULL_WITH_RATE_LIMIT = 10086, "consumer in pull mode can not have rate limit set"
    CONSUMER_HB_REQUIRES_PUSH = 10088, "consumer idle heartbeat requires a push based consumer"
    CONSUMER_FC_REQUIRES_PUSH = 10089, "consumer flow control requires a push based consumer"
    CONSUMER_INVALID_POLICY = 10094, "{err}"
    CONSUMER_INVALID_SAMPLING = 10095, "failed to parse consumer sampling configuration: {err}"
    STREAM_HEADER_EXCEEDS_MAXIMUM = 10097, "header size exceeds maximum allowed of 64k"
    CONSUMER_WQ_REQUIRES_EXPLICIT_ACK = 10098, "workqueue stream requires explicit ack"
    CONSUMER_WQ_MULTIPLE_UNFILTERED = (
        10099,
        "multiple non-filtered consumers not allowed on workqueue stream",
    )
    CONSUMER_WQ_CONSUMER_NOT_UNIQUE = 10100, "filtered consumer not unique on workqueue stream"
    CONSUMER_WQ_CONSUMER_NOT_DELIVER_ALL = 10101, "consumer must be deliver all on workqueue stream"
    CONSUMER_NAME_TOO_LONG = 10102, "consumer name is too long, maximum allowed is {max}"
    CONSUMER_DESCRIPTION_TOO_LONG = (
        10107,
        "consumer description is too long, maximum allowed is {max}",
    )
    CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS = (
        10108,
        "consumer with flow control also needs heartbeats",
    )
    STREAM_SEALED = 10109, "invalid operation on sealed stream"
    STREAM_PURGE_FAILED = 10110, "{err}", 500
    STREAM_ROLLUP_FAILED = 10111, "{err}", 500
    CONSUMER_INVALID_DELIVER_SUBJECT = 10112, "invalid push consumer deliver subject"
    CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL = (
        10115,
        "consumer max request expires needs to be >= 1ms",
    )
    CONSUMER_MAX_DELIVER_BACKOFF = 10116, "max deliver is required to be > length of backoff values"
    STREAM_INFO_MAX_SUBJECTS = 10117, "subject details would exceed maximum allowed", 500
    CONSUMER_MAX_PENDING_ACK_EXCESS = (
        10121,
        "consumer max ack pending exceeds system limit of {limit}",
    )
    CONSUMER_REPLICAS_EXCEEDS_STREAM = 10126, "consumer config replica count exceeds parent stream"
    CONSUMER_NAME_CONTAINS_PATH_SEPARATORS = 10127, "Consumer name can not contain path separators"
    STREAM_NAME_CONTAINS_PATH_SEPARATORS = 10128, "Stream name can not contain path separators"
    STREAM_NAME_EXIST_RESTORE = 10130, "stream name already in use, cannot restore"
    CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH = (
        10131,
        "Consumer create request did not match filtered subject from create subject",
    )
    CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH = (
        10132,
        "Consumer Durable and Name have to be equal if both are provided",
    )
    REPLICAS_COUNT_CANNOT_BE_NEGATIVE = 10133, "replicas count cannot be negative"
    CONSUMER_METADATA_LENGTH = 10135, "consumer metadata exceeds maximum size of {limit}"
    CONSUMER_DUPLICATE_FILTER_SUBJECTS = (
        10136,
        "consumer cannot have both FilterSubject and FilterSubjects specified",
    )
    CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED = (
        10137,
        "consumer with multiple subject filters cannot use subject based API",
    )
    CONSUMER_OVERLAPPING_SUBJECT_FILTERS = 10138, "consumer subject filters cannot overlap"
    CONSUMER_EMPTY_FILTER = 10139, "consumer filter in FilterSubjects cannot be empty"
    SOURCE_INVALID_STREAM_NAME = 10141, "sourced stream name is invalid"
    MIRROR_INVALID_STREAM_NAME = 10142, "mirrored stream name is invalid"
    MIRROR_WITH_FIRST_SEQ = 10143, "stream mirrors can not have first sequence configured"
    CONSUMER_ALREADY_EXISTS = 10148, "consumer already exists"
    CONSUMER_DOES_NOT_EXIST = 10149, "consumer does not exist"
    CONSUMER_INACTIVE_THRESHOLD_EXCESS = (
        10153,
        "consumer inactive threshold exceeds system limit of {limit}",
    )
    PEDANTIC = 10157, "pedantic mode: {err}"
    CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP = (
        10159,
        "Setting PriorityPolicy requires at least one PriorityGroup to be set",
    )
    CONSUMER_INVALID_PRIORITY_GROUP = (
        10160,
        "Provided priority group does not exist for this consumer",
    )
    CONSUMER_EMPTY_GROUP_NAME = 10161, "Group name cannot be an empty string"
    CONSUMER_INVALID_GROUP_NAME = (
        10162,
        "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16"
        " characters",
    )
    STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY = (
        10163,
        "expected last sequence per subject temporarily unavailable",
        503,
    )
    MESSAGE_TTL_INVALID = 10165, "invalid per-message TTL"
    MESSAGE_TTL_DISABLED = 10166, "per-message TTL is disabled"
    CONSUMER_PUSH_WITH_PRIORITY_GROUP = 10178, "priority groups can not be used with push consumers"
    CONSUMER_ACK_WAIT_NEGATIVE = 10183, "consumer ack wait needs to be positive"
    CONSUMER_BACKOFF_NEGATIVE = 10184, "consumer backoff needs to be positive"
    STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_INVALID = (
        10193,
        "missing sequence for expected last sequence per subject",
    )
    CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE = (
        10196,
        "consumer can not have priority groups when policy is none",
    )
    CONSUMER_PINNED_TTL_WITHOUT_PRIORITY_POLICY_NONE = (
        10197,
        "PinnedTTL cannot be set when PriorityPolicy is none",
    )
    CONSUMER_INVALID_RESET = 10204, "invalid reset: {err}"
    NOT_EMPTY_REQUEST = 10038, "expected an empty request payload"
    STREAM_CREATE = 10049, "{err}", 500
    STREAM_DELETE = 10050, "{err}", 500
    STREAM_GENERAL = 10051, "{err}", 500
    STREAM_UPDATE = 10069, "{err}", 500
    STREAM_TOO_MANY_REQUESTS = 10167, "too many requests", 429
    MESSAGE_INCR_DISABLED = 10168, "message counters is disabled"
    ATOMIC_PUBLISH_DISABLED = 10174, "atomic publish is disabled"
    MESSAGE_SCHEDULES_DISABLED = 10188, "message schedules is disabled"
    BATCH_PUBLISH_DISABLED = 10205, "batch publish is disabled"
    CLUSTER_REQUIRED = 10010, "JetStream clustering support required", 503


_BY_CODE: Final = {int(member): member for member in ErrorCode}


class JetStreamError(Exception):
    """A request of the JetStream API is refused; replies and publish acknowledgements carry it."""

    def __init__(self, err_code: ErrorCode, description: str, code: int = 0) -> None:
        """`code`: the status after HTTP, 0: that of the error's code."""
        super().__init__(description)
        self.err_code = err_code
        self.description = description
        self.code = code or err_code.http_status

    def to_json(self) -> dict[str, Any]:
        """Return the member `error` of a reply in the form `v1`."""
        return {
            "code": self.code,
            "err_code": int(self.err_code),
            "description": self.description,
        }


def error(err_code: int, **texts: object) -> JetStreamError:
    """Return the error of a code, the fields of its description filled in.

    Raises KeyError for a code that the table lacks, and for a field that is not given.
    """
    known = _BY_CODE[err_code]
    return JetStreamError(known, known.description.format_map(texts))
