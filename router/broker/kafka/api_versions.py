"""ApiVersions (18): which APIs are served in which versions, and what the client is."""

from __future__ import annotations

import re
from typing import Any, Final

from router.broker.kafka.client import Api, Request
from router.broker.kafka.failures import ErrorCode

KEY: Final = 18
VERSIONS: Final = 0, 4
MAX_NAME_CHARACTERS: Final = 200
FEATURE: Final = "transaction.version"
FEATURE_VERSION: Final = 2
"""Of the protocol of transactions: clients add partitions by writing to them (KIP-890)."""
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-.]*[A-Za-z0-9])?")


def api_versions(request: Request) -> Any:
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
            request.struct(
                "SupportedFeatureKey", name=FEATURE, min_version=1, max_version=FEATURE_VERSION
            )
        ],
        finalized_features_epoch=0,
        finalized_features=[
            request.struct(
                "FinalizedFeatureKey",
                name=FEATURE,
                min_version_level=1,
                max_version_level=FEATURE_VERSION,
            )
        ],
    )


API_VERSIONS: Final = Api(KEY, "ApiVersions", VERSIONS, api_versions, public=True)
