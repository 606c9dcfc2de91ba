"""AlterConfigs (33) and IncrementalAlterConfigs (44): policies of topics, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.describe_configs import BROKER, TOPIC
from router.broker.kafka.failures import REFUSALS, ErrorCode, KafkaError, error_code, error_message
from router.broker.kafka.topic_configs import (
    TOPIC_CONFIGS,
    ConfigType,
    InvalidConfigError,
    config_change,
    topic_values,
)
from router.broker.storage import TopicRecord
from router.broker.topics import changes
from router.model import TopicName

MAX_RESOURCES: Final = 1_000
"""Of one request; those behind them are refused."""
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations of IncrementalAlterConfigs, the last two of lists."""

ConfigChanges = list[tuple[str, "str | None"]]
"""Names of configs and their new values, None: the default."""
GivenConfigs = Callable[[Any, TopicRecord], ConfigChanges]
"""Returns what a resource of a request stands for, for a topic."""

_log = structlog.get_logger(__name__)


async def alter_configs(request: KafkaRequest) -> Any:
    """Give topics the configs that are named, and all others their defaults."""

    def given(resource: Any, _: TopicRecord) -> ConfigChanges:
        named = {config.name: config.value for config in resource.configs}
        return list((dict.fromkeys(TOPIC_CONFIGS) | named).items())

    return await _answer(request, given)


async def incremental_alter_configs(request: KafkaRequest) -> Any:
    """Give topics the configs that are named; all others stay."""

    def given(resource: Any, record: TopicRecord) -> ConfigChanges:
        found = [
            (config.name, _incremented(request, config, record)) for config in resource.configs
        ]
        if len({name for name, _ in found}) < len(found):
            raise InvalidConfigError("a config is named more than once")
        return found

    return await _answer(request, given)


def _incremented(request: KafkaRequest, change: Any, record: TopicRecord) -> str | None:
    """Return the new value of a config, None: the default."""
    name, operation = change.name, change.config_operation
    if operation == DELETE:
        return None
    value: str | None = change.value
    if value is None:
        raise InvalidConfigError(f"{name} has no value")
    if operation == SET:
        return value
    config = TOPIC_CONFIGS.get(name)
    if operation not in {APPEND, SUBTRACT} or (config and config.type != ConfigType.LIST):
        raise InvalidConfigError(f"{name} takes one value and no list")
    before = "".join(v.value for v in topic_values(request.context, record) if v.config is config)
    parts, given = ([p.strip() for p in text.split(",") if p.strip()] for text in (before, value))
    if operation == APPEND:
        return ",".join(dict.fromkeys(parts + given))
    return ",".join(part for part in parts if part not in given)


async def _answer(request: KafkaRequest, given: GivenConfigs) -> Any:
    results = []
    for number, resource in enumerate(request.body.resources):
        result = request.struct(
            "AlterConfigsResourceResponse",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        try:
            if number >= MAX_RESOURCES:
                limit = f"at most {MAX_RESOURCES} resources"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, limit)
            await _alter(request, resource, given)
        except REFUSALS as failure:
            result.error_code = error_code(failure)
            result.error_message = error_message(failure) or ""
        results.append(result)
    return request.response(responses=results)


async def _alter(request: KafkaRequest, resource: Any, given: GivenConfigs) -> None:
    context, client = request.context, request.client
    if resource.resource_type == BROKER:
        raise InvalidConfigError("configs of the broker are settings of the router")
    if resource.resource_type != TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    record = client.topic(resource.resource_name, Right.MANAGE)
    change = config_change(context.broker.settings, given(resource, record))
    change.over(record.policies)
    if not request.body.validate_only:
        name = TopicName.parse(record.name)
        await changes.change_settings(context.topics, name, change.policies, change.properties)
        both = {**change.policies, **change.properties}
        new = {name: value for name, value in both.items() if value is not None}
        user = client.identity.principal.name
        _log.info("topic-policies", topic=record.name, user=user, new=new)


ALTER_CONFIGS: Final = KafkaApi(33, "AlterConfigs", (0, 2), alter_configs)
INCREMENTAL_ALTER_CONFIGS: Final = KafkaApi(
    44, "IncrementalAlterConfigs", (0, 1), incremental_alter_configs
)
