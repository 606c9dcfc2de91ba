"""How many files and calls of `router/` a warm request crosses: what a reader has to follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.request_files import ROOT, measure

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
MAX_FILES = {
    "POST": 31,
    "poll": 56,
    "SEND": 11,
    "produce": 36,
    "produce, topic's schema": 49,
    "fetch": 65,
    "acknowledge": 47,
    "JetStream publish": 63,
    "JetStream fetch": 63,
    "JetStream acknowledge": 46,
}
"""Of front and broker together. A module that joins the path takes the place of another."""
MAX_CALLS = {
    "POST": 190,
    "poll": 335,
    "SEND": 110,
    "produce": 270,
    "produce, topic's schema": 345,
    "fetch": 460,
    "acknowledge": 300,
    "JetStream publish": 360,
    "JetStream fetch": 480,
    "JetStream acknowledge": 245,
}


def test_requests_cross_few_files(tmp_path: Path) -> None:
    crossed = measure(ROOT, tmp_path)
    # Both processes were seen, and what they do for a POST.
    assert {"web/dmaap/prepared.py", "services/publish.py"} <= crossed["POST"].front
    for operation in ("POST", "poll", "SEND"):
        assert "broker/storage/journal.py" in crossed[operation].broker
    for operation, most in MAX_FILES.items():
        files = crossed[operation].front | crossed[operation].broker
        assert len(files) <= most, "\n".join([f"{operation}: {len(files)}", *sorted(files)])
        assert crossed[operation].calls <= MAX_CALLS[operation], operation
