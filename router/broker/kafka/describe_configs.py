"""DescribeConfigs (32): the configs of topics, and of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.context import NODE_ID
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code
from router.broker.kafka.topic_configs import ConfigValue, broker_values, topic_values

TOPIC: Final = 2
BROKER: Final = 4
"""The numbers of kinds of resources."""
MAX_RESOURCES: Final = 10_000
"""That one request may name."""


def describe_configs(request: Request) -> Any:
    """Answer the configs that are named, or all."""
    requested = request.body.resources[:MAX_RESOURCES]
    return request.response(results=[_described(request, resource) for resource in requested])


def _described(request: Request, resource: Any) -> Any:
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


def _values(request: Request, resource: Any) -> Sequence[ConfigValue]:
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
