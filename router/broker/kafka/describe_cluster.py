"""DescribeCluster (60): the one broker of the cluster."""

from __future__ import annotations

from typing import Any, Final

from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import ErrorCode

BROKERS: Final = 1
"""The kind of endpoints that clients connect to; the other one is that of controllers."""


async def describe_cluster(request: KafkaRequest) -> Any:
    """Answer the broker, with the address under which the client reaches it."""
    if request.body.endpoint_type != BROKERS:
        return request.response(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is the endpoint of a broker",
        )
    context = request.context
    host, port = context.address(request.client.connection)
    broker = request.struct("DescribeClusterBroker", broker_id=NODE_ID, host=host, port=port)
    return request.response(
        cluster_id=await context.cluster_id(), controller_id=NODE_ID, brokers=[broker]
    )


DESCRIBE_CLUSTER: Final = KafkaApi(60, "DescribeCluster", (0, 2), describe_cluster)
