"""DescribeConfigs (32) and ListConfigResources (74): the configs of topics, and of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code
from router.broker.kafka.metadata import visible_topics
from router.broker.kafka.topic_configs import ConfigValue, broker_values, topic_values

TOPIC: Final = 2
BROKER: Final = 4
"""The numbers of kinds of resources."""
CLIENT_METRICS: Final = 16
RESOURCE_TYPES: Final = frozenset({TOPIC, BROKER, 8, CLIENT_METRICS, 32})
"""All types of Kafka's: loggers of brokers and groups have no configs here."""
MAX_RESOURCES: Final = 10_000
"""That one request may name."""


def describe_configs(request: KafkaRequest) -> Any:
    """Answer the configs that are named, or all; what is named several times once."""
    requested = {
        (one.resource_type, one.resource_name, tuple(one.configuration_keys or ())): one
        for one in request.body.resources[:MAX_RESOURCES]
    }
    return request.response(results=[_described(request, one) for one in requested.values()])


def _described(request: KafkaRequest, resource: Any) -> Any:
    result = request.struct(
        "DescribeConfigsResult",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    keys = resource.configuration_keys
    try:
        result.configs = [
            _config(request, value)
            for value in _values(request, resource)
            if keys is None or value.config.name in keys
        ]
    except REFUSALS as failure:
        result.error_code = error_code(failure)
    return result


def _values(request: KafkaRequest, resource: Any) -> Sequence[ConfigValue]:
    """Return the configs of a topic or of the broker; raise KafkaError."""
    context, client = request.context, request.client
    if resource.resource_type == TOPIC:
        return topic_values(context, client.topic(resource.resource_name, Right.VIEW))
    if resource.resource_type == BROKER:
        if not client.identity.administers:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if resource.resource_name in {"", str(NODE_ID)}:
            return broker_values(context)
    raise KafkaError(ErrorCode.INVALID_REQUEST)


def _config(request: KafkaRequest, found: ConfigValue) -> Any:
    config, body = found.config, request.body
    described = request.struct(
        "DescribeConfigsResourceResult",
        name=config.name,
        value=found.value,
        read_only=config.read is None,
        config_source=found.source,
        config_type=config.type,
    )
    if body.include_documentation:
        described.documentation = config.documentation
    if body.include_synonyms:
        described.synonyms = [
            request.struct(
                "DescribeConfigsSynonym", name=config.name, value=found.value, source=found.source
            )
        ]
    return described


def list_config_resources(request: KafkaRequest) -> Any:
    """Answer the topics and the broker, or those of them that are of the types that are named.

    Version 0 lists subscriptions of metrics, of which there are none.
    """
    types = frozenset(request.body.resource_types if request.version else {CLIENT_METRICS})
    if types - RESOURCE_TYPES:
        return request.response(error_code=ErrorCode.UNSUPPORTED_VERSION)
    types = types or RESOURCE_TYPES
    found: list[tuple[int, str]] = []
    if TOPIC in types:
        found += ((TOPIC, name) for name, _ in visible_topics(request.client))
    if BROKER in types:
        found.append((BROKER, str(NODE_ID)))
    return request.response(
        config_resources=[
            request.struct("ConfigResource", resource_name=name, resource_type=kind)
            for kind, name in found
        ]
    )


LIST_CONFIG_RESOURCES: Final = KafkaApi(74, "ListConfigResources", (0, 1), list_config_resources)
DESCRIBE_CONFIGS: Final = KafkaApi(32, "DescribeConfigs", (1, 4), describe_configs)
