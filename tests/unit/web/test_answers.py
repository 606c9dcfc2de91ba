"""Answers to requests that have nothing to do with CloudEvents stay as they were."""

from __future__ import annotations

import json

from tests.unit.web.answered import GOLDEN, answers


def test_answers_are_those_of_before() -> None:
    expected = json.loads(GOLDEN.read_text())
    found = json.loads(json.dumps(answers()))
    assert len(found) == len(expected)
    for now, before in zip(found, expected, strict=True):
        assert now == before
