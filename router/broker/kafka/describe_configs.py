"""DescribeConfigs (32): the configs of topics, and of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import ErrorCode
from router.broker.kafka.topic_configs import ConfigValue, broker_values, topic_values
from router.model import TopicName

TOPIC: Final = 2
BROKER: Final = 4
"""The numbers of kinds of resources."""
MAX_RESOURCES: Final = 10_000
"""That one request may name."""


def describe_configs(request: Request) -> Any:
    """Answer the configs that are named, or all."""
    asked = request.body.resources[:MAX_RESOURCES]
    return request.response(results=[_described(request, resource) for resource in asked])


def _described(request: Request, resource: Any) -> Any:
    result = request.struct(
        "DescribeConfigsResult",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    found = _values(request, resource)
    if isinstance(found, ErrorCode):
        result.error_code = found
        return result
    keys = resource.configuration_keys
    result.configs = [
        _config(request, value) for value in found if keys is None or value.config.name in keys
    ]
    return result


def _values(request: Request, resource: Any) -> Sequence[ConfigValue] | ErrorCode:
    context, client = request.context, request.client
    if resource.resource_type == BROKER:
        if not client.identity.administers:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        named = resource.resource_name in {"", str(NODE_ID)}
        return broker_values(context) if named else ErrorCode.INVALID_REQUEST
    if resource.resource_type != TOPIC:
        return ErrorCode.INVALID_REQUEST
    record = context.topics.find_kafka(resource.resource_name)
    if record is None:
        return client.missing(resource.resource_name)
    if not client.may(TopicName.parse(record.name), Right.VIEW):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return topic_values(context, record)


def _config(request: Request, found: ConfigValue) -> Any:
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


DESCRIBE_CONFIGS: Final = Api(32, "DescribeConfigs", (1, 4), describe_configs)
