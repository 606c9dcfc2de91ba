"""A checker that is missing fails the run with a sentence; nothing is skipped for want of one."""

from __future__ import annotations

import os

import pytest

from tests.deploy.tools import tool


def test_tool_that_is_missing_fails_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(AssertionError, match="no-such-checker is missing: install it, on Debian"):
        tool("no-such-checker", "no-such-package")
