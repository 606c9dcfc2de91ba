"""Files with secrets that commands write: readable by their owner alone, replaced as a whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def create(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file, durably; raise FileExistsError, OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, text: str) -> None:
    """Replace a file at once: a reader finds the old one or the new one. Raises OSError."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        create(made, text.encode())
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
