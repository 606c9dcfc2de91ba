"""Policies of namespaces: what cannot be read is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from router.errors import BadRequestError
from router.web.pulsar_admin.policies import EVICTION, read_quota
from router.web.pulsar_admin.views import AdminRefusedError


@pytest.mark.parametrize("time", [[], [None], {}, "1", 1.5, True, -2])
def test_time_of_a_quota_that_is_no_number_is_refused(time: Any) -> None:
    with pytest.raises(BadRequestError, match="limitTime: expected a whole number"):
        read_quota({"limitSize": 1, "policy": EVICTION, "limitTime": time})


@pytest.mark.parametrize("time", [None, -1, 0, 0.0])
def test_quota_without_a_time_is_read(time: float | None) -> None:
    body = {"limitSize": 1, "policy": EVICTION, "limitTime": time}
    assert read_quota(body) == {"backlog_bytes": 1}


def test_quota_with_a_time_is_refused() -> None:
    with pytest.raises(AdminRefusedError) as caught:
        read_quota({"limitSize": 1, "policy": EVICTION, "limitTime": 60})
    assert caught.value.status == 412
