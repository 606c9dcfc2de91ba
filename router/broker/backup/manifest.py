"""Owns what a backup says of itself: its manifest, a JSON document that is written last."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from router.broker.backup.failures import damaged

FORMAT: Final = 1
METADATA: Final = "metadata.db"
REGISTRY: Final = "registry.db"
_FILE: Final = re.compile(r"(metadata|registry)\.db|journal/[0-9]+\.log|subjects/[0-9]+\.idx")
_SEGMENT: Final = re.compile(r"[0-9]+/[0-9]+(-[0-9]+)?\.(seg|idx)")
_HISTORY: Final = re.compile(r"[0-9a-f]{16}|")


class StoredFile(NamedTuple):
    """The first `size` bytes of a file, which have this CRC32-C."""

    path: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete backup.

    `files` are below its own folder, `segments` below the folder of its history, which it shares
    with others. `missing` are segments that the data folder did not have whole: of them the backup
    has what could be read. `metadata` is the format of the metadata, None: there is no log.
    `origin` names the data folder, whatever became of it: one that was restored has the same.
    """

    id: str
    time: str
    build: str
    history: str
    metadata: int | None
    copied: int
    files: tuple[StoredFile, ...]
    segments: tuple[StoredFile, ...]
    missing: tuple[str, ...] = ()
    origin: str = ""

    @property
    def size(self) -> int:
        """Return the bytes that a restore writes."""
        return sum(file.size for file in (*self.files, *self.segments))

    def dump(self) -> bytes:
        """Return the manifest as bytes of its file."""
        return json.dumps({"format": FORMAT} | asdict(self), separators=(",", ":")).encode()

    @classmethod
    def load(cls, data: bytes, where: Path) -> Manifest:
        """Return the manifest of a file; raise BackupError if it is none, or of another format."""
        try:
            found: dict[str, Any] = json.loads(data)
            version = found.pop("format")
            if version != FORMAT:
                raise damaged(
                    f"{where} has format {version}, and this release reads format {FORMAT} only"
                )
            found["files"] = _files(found["files"], _FILE)
            found["segments"] = segments_in(found["segments"])
            found["missing"] = tuple(map(_text, found["missing"]))
            return cls(**found)._checked(where.parent.name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(f"{where} is not the manifest of a backup: {error}") from error

    def _checked(self, folder: str) -> Manifest:
        """Return this; raise ValueError if it is not of the folder with this name."""
        if self.id != folder:
            raise ValueError("it is that of another backup")
        if not _HISTORY.fullmatch(_text(self.history)):
            raise ValueError("it names no history")
        databases = {REGISTRY} if self.metadata is None else {REGISTRY, METADATA}
        if not databases <= {file.path for file in self.files}:
            raise ValueError("it names no database")
        for text in (self.time, self.build, self.origin):
            _text(text)
        for number in (self.copied, 0 if self.metadata is None else self.metadata):
            _number(number)
        return self


def segments_in(found: Iterable[Any]) -> tuple[StoredFile, ...]:
    """Return segments and indexes as a document names them; raise ValueError, TypeError."""
    return _files(found, _SEGMENT)


def _files(found: Iterable[Any], names: re.Pattern[str]) -> tuple[StoredFile, ...]:
    files = tuple(StoredFile(_text(path), _number(size), _number(crc)) for path, size, crc in found)
    for file in files:
        # What others wrote into the folder may not name files elsewhere.
        if not names.fullmatch(file.path):
            raise ValueError(f"it names the file {file.path}")
    return files


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise ValueError(f"{found} is no text")  # noqa: TRY004 - of a document, not of a caller
    return found


def _number(found: object) -> int:
    if not isinstance(found, int) or not 0 <= found < 1 << 63:
        raise ValueError(f"{found} is no number of bytes")
    return found
