"""Which backend the settings name."""

from __future__ import annotations

import pytest

from router.backends import opening
from router.backends.memory import MemoryNode
from router.backends.opening import open_backend
from router.errors import SettingError
from router.settings import load


@pytest.mark.parametrize("url", ["kafak://user:secret@k1:9092", "kafak:user:secret@k1"])
def test_a_backend_that_is_none_is_told_without_its_password(url: str) -> None:
    with pytest.raises(SettingError, match=r"kafak.*known are .*kafka, memory") as refused:
        open_backend(load(None, {}, {"backend.url": url}), MemoryNode())
    assert "secret" not in str(refused.value)


def test_metadata_of_packages_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(None, {}, {"backend.url": "memory"})
    open_backend(settings, MemoryNode()).close()
    monkeypatch.delattr(opening, "entry_points")
    open_backend(settings, MemoryNode()).close()
