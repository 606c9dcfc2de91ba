"""How many files and calls of `router/` a warm request crosses: what a reader has to follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.request_files import ROOT, measure

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
MAX_FILES = {
    "POST": 30,
    "poll": 58,
    "SEND": 11,
    "produce": 36,
    "produce, topic's schema": 49,
    "fetch": 65,
    "acknowledge": 47,
    "JetStream publish": 62,
    "JetStream fetch": 68,
    "JetStream acknowledge": 48,
    "NATS publish": 23,
    "NATS pull and acknowledge": 28,
}
"""Of front and broker together. A module that joins the path takes the place of another."""
MAX_CALLS = {
    "POST": 185,
    "poll": 320,
    "SEND": 65,
    "produce": 265,
    "produce, topic's schema": 330,
    "fetch": 425,
    "acknowledge": 265,
    "JetStream publish": 335,
    "JetStream fetch": 460,
    "JetStream acknowledge": 290,
    "NATS publish": 95,
    "NATS pull and acknowledge": 185,
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
