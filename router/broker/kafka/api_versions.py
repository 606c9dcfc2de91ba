"""ApiVersions (18): which APIs are served in which versions, and what the client is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import ErrorCode

KEY: Final = 18
VERSIONS: Final = 0, 4
MAX_NAME_CHARACTERS: Final = 200
FEATURES: Final[Mapping[str, int]] = {"group.version": 1, "transaction.version": 2}
"""Versions of protocols: consumer groups are served (KIP-848), and producers add partitions to
transactions by writing to them (KIP-890)."""
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-.]*[A-Za-z0-9])?")


def api_versions(request: KafkaRequest) -> Any:
    """Answer all APIs; a request without a body is of a version that is not served."""
    body = request.body
    if body is None:
        # The client asks again with a version that both know.
        own = request.struct("ApiVersion", api_key=KEY, min_version=VERSIONS[0])
        own.max_version = VERSIONS[1]
        return request.response(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
    if request.version >= 3:
        name, version = body.client_software_name, body.client_software_version
        if not (_NAME.fullmatch(name) and _NAME.fullmatch(version)):
            return request.response(error_code=ErrorCode.INVALID_REQUEST)
        request.client.software = f"{name} {version}"[:MAX_NAME_CHARACTERS]
    keys = [
        request.struct("ApiVersion", api_key=key, min_version=first, max_version=last)
        for key, (first, last) in sorted(request.context.versions.items())
    ]
    return request.response(
        api_keys=keys,
        supported_features=[
            request.struct("SupportedFeatureKey", name=name, min_version=1, max_version=version)
            for name, version in FEATURES.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            request.struct(
                "FinalizedFeatureKey",
                name=name,
                min_version_level=version,
                max_version_level=version,
            )
            for name, version in FEATURES.items()
        ],
    )


API_VERSIONS: Final = KafkaApi(KEY, "ApiVersions", VERSIONS, api_versions, public=True)
