"""AlterConfigs (33) and IncrementalAlterConfigs (44): the policies of topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from router.access.permissions import Right
from router.broker.kafka.client import Api, Request
from router.broker.kafka.describe_configs import BROKER, TOPIC
from router.broker.kafka.failures import ErrorCode, error_code, error_message
from router.broker.kafka.topic_configs import (
    TOPIC_CONFIGS,
    InvalidConfigError,
    policies_of,
)
from router.broker.storage import StoreError
from router.broker.topics import changes
from router.errors import RouterError
from router.model import TopicName

MAX_RESOURCES: Final = 1_000
"""Of one request; those behind them are refused."""
SET: Final = 0
DELETE: Final = 1
"""Operations of IncrementalAlterConfigs; appending to lists and subtracting are the others."""

ConfigChanges = list[tuple[str, "str | None"]]
"""Names of configs and their new values, None: the default."""

_log = structlog.get_logger(__name__)


async def alter_configs(request: Request) -> Any:
    """Give topics the configs that are named, and all others their defaults."""

    def given(resource: Any) -> ConfigChanges:
        named = {config.name: config.value for config in resource.configs}
        return list((dict.fromkeys(TOPIC_CONFIGS) | named).items())

    return await _answer(request, given)


async def incremental_alter_configs(request: Request) -> Any:
    """Give topics the configs that are named; all others stay."""

    def given(resource: Any) -> ConfigChanges:
        found: ConfigChanges = []
        for config in resource.configs:
            if config.config_operation not in {SET, DELETE}:
                raise InvalidConfigError(f"{config.name} takes one value and no list")
            if config.config_operation == SET and config.value is None:
                raise InvalidConfigError(f"{config.name} has no value")
            found.append((config.name, None if config.config_operation else config.value))
        if len({name for name, _ in found}) < len(found):
            raise InvalidConfigError("a config is named more than once")
        return found

    return await _answer(request, given)


async def _answer(request: Request, given: Callable[[Any], ConfigChanges]) -> Any:
    results = []
    for number, resource in enumerate(request.body.resources):
        code, message = ErrorCode.POLICY_VIOLATION, f"at most {MAX_RESOURCES} resources"
        if number < MAX_RESOURCES:
            code, message = await _outcome(_alter(request, resource, given))
        results.append(
            request.struct(
                "AlterConfigsResourceResponse",
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return request.response(responses=results)


async def _outcome(change: Awaitable[ErrorCode]) -> tuple[ErrorCode, str]:
    try:
        return await change, ""
    except InvalidConfigError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    except (RouterError, StoreError) as failure:
        return error_code(failure), error_message(failure)


async def _alter(
    request: Request, resource: Any, given: Callable[[Any], ConfigChanges]
) -> ErrorCode:
    context, client = request.context, request.client
    if resource.resource_type == BROKER:
        raise InvalidConfigError("configs of the broker are settings of the router")
    if resource.resource_type != TOPIC:
        return ErrorCode.INVALID_REQUEST
    record = context.topics.find_kafka(resource.resource_name)
    if record is None:
        return client.missing(resource.resource_name)
    name = TopicName.parse(record.name)
    if not client.may(name, Right.MANAGE):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    policies = policies_of(context.broker.settings, given(resource))
    if not request.body.validate_only:
        new = {name: value for name, value in policies.items() if value is not None}
        await changes.change_policies(context.topics, name, new, policies.keys() - new.keys())
        _log.info("topic-policies", topic=record.name, user=client.identity.principal.name, **new)
    return ErrorCode.NONE


ALTER_CONFIGS: Final = Api(33, "AlterConfigs", (0, 2), alter_configs)
INCREMENTAL_ALTER_CONFIGS: Final = Api(
    44, "IncrementalAlterConfigs", (0, 1), incremental_alter_configs
)
