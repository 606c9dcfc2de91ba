"""DescribeUserScramCredentials (50): which users can authenticate by SCRAM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.failures import ErrorCode

MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers."""


def describe_user_scram_credentials(request: KafkaRequest) -> Any:
    """Answer the mechanisms of the users that are named, or of all, to administrators."""
    identity = request.client.identity
    if not identity.administers:
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        request.count_error(code)
        return request.response(error_code=code, error_message="for administrators only")
    authorizer = identity.authorizer
    known = authorizer.scram_iterations() if authorizer is not None else {}
    named = Counter(user.name for user in request.body.users or ())
    results = [_result(request, name, known, named[name]) for name in named or known]
    return request.response(results=results)


def _result(
    request: KafkaRequest, name: str, known: Mapping[str, Mapping[str, int]], times: int
) -> Any:
    result = request.struct("DescribeUserScramCredentialsResult", user=name)
    if times > 1:
        result.error_code = ErrorCode.DUPLICATE_RESOURCE
        result.error_message = "the user is named more than once"
    elif name not in known:
        result.error_code = ErrorCode.RESOURCE_NOT_FOUND
        result.error_message = "there is no such user that can authenticate by SCRAM"
    else:
        result.credential_infos = _infos(request, known[name])
    return result


def _infos(request: KafkaRequest, iterations: Mapping[str, int]) -> Sequence[Any]:
    return [
        request.struct("CredentialInfo", mechanism=MECHANISMS[mechanism], iterations=count)
        for mechanism, count in sorted(iterations.items())
    ]


DESCRIBE_USER_SCRAM_CREDENTIALS: Final = KafkaApi(
    50, "DescribeUserScramCredentials", (0, 0), describe_user_scram_credentials
)
