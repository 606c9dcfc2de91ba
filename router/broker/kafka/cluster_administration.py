"""APIs of what a cluster of one broker has none of, so that tools show that and go on.

There are no quotas and reassignments of partitions; the only broker leads them all.
Permissions are the router's own: an ACL is neither shown nor taken.
"""

from __future__ import annotations

from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import REFUSALS, ErrorCode, error_code, error_message

ACLS: Final = "there are no ACLs: the router has permissions of its own"
ELECTION: Final = "the only broker leads the partition"
QUOTA_ENTITIES: Final = frozenset({"user", "client-id", "ip"})


def describe_acls(request: KafkaRequest) -> Any:
    """Answer as a broker without an authorizer of Kafka's."""
    request.count_error(ErrorCode.SECURITY_DISABLED)
    return request.response(error_code=ErrorCode.SECURITY_DISABLED, error_message=ACLS)


def create_acls(request: KafkaRequest) -> Any:
    """Refuse every ACL."""
    return request.response(results=_refused(request, "AclCreationResult", request.body.creations))


def delete_acls(request: KafkaRequest) -> Any:
    """Refuse every filter."""
    results = _refused(request, "DeleteAclsFilterResult", request.body.filters)
    return request.response(filter_results=results)


def _refused(request: KafkaRequest, struct: str, requested: Any) -> list[Any]:
    code = ErrorCode.SECURITY_DISABLED
    request.count_error(code)
    return [request.struct(struct, error_code=code, error_message=ACLS) for _ in requested]


def describe_client_quotas(request: KafkaRequest) -> Any:
    """Answer that there are none."""
    for component in request.body.components:
        if component.entity_type not in QUOTA_ENTITIES:
            return request.response(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                error_message="quotas are of users, clients and addresses",
                entries=None,
            )
    return request.response(entries=())


def elect_leaders(request: KafkaRequest) -> Any:
    """Answer for each partition that is named that its leader stays, or that it is not there."""
    results = []
    for topic in request.body.topic_partitions or ():
        partitions = [_election(request, topic.topic, index) for index in topic.partitions]
        results.append(
            request.struct("ReplicaElectionResult", topic=topic.topic, partition_result=partitions)
        )
    return request.response(replica_election_results=results)


def _election(request: KafkaRequest, topic: str, index: int) -> Any:
    code, message = ErrorCode.ELECTION_NOT_NEEDED, ELECTION
    try:
        record = request.client.topic(topic, Right.MANAGE)
        if not 0 <= index < max(1, record.partitions):
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no such partition"
    except REFUSALS as failure:
        code, message = error_code(failure), error_message(failure) or ""
    return request.struct(
        "PartitionResult", partition_id=index, error_code=code, error_message=message
    )


def list_partition_reassignments(request: KafkaRequest) -> Any:
    """Answer that there are none."""
    return request.response(topics=())


APIS: Final = (
    KafkaApi(29, "DescribeAcls", (1, 3), describe_acls),
    KafkaApi(30, "CreateAcls", (1, 3), create_acls),
    KafkaApi(31, "DeleteAcls", (1, 3), delete_acls),
    KafkaApi(43, "ElectLeaders", (0, 2), elect_leaders),
    KafkaApi(46, "ListPartitionReassignments", (0, 0), list_partition_reassignments),
    KafkaApi(48, "DescribeClientQuotas", (0, 1), describe_client_quotas),
)
