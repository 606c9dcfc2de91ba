"""Kafka's definitions as released, and the names of their Java classes, from the jars."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers import maven

CONVERTER = "JsonConverter.class"


@dataclass
class Release:
    """What one jar holds: texts by file name, and Java classes by their short names."""

    name: str
    texts: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)

    def class_of(self, message: str) -> str:
        """Return the Java class of a message: requests, responses and headers have a suffix."""
        return self.classes.get(f"{message}Data") or self.classes[message]

    def write(self, folder: Path) -> Path:
        """Write the definitions to a new folder and return it."""
        folder.mkdir()
        for file, text in self.texts.items():
            (folder / file).write_text(text, "utf-8")
        return folder


def releases(pin: str) -> list[Release]:
    """Return what each jar of one of maven.PINS holds, if it has definitions."""
    jars = sorted(Path(maven.classpath(pin)).parent.glob("kafka-*.jar"))
    return [found for jar in jars if (found := _release(jar)).texts]


def _release(jar: Path) -> Release:
    found = Release(jar.stem)
    with zipfile.ZipFile(jar) as opened:
        for name in opened.namelist():
            path = Path(name)
            if path.suffix == ".json" and path.parent.name in {"message", "metadata"}:
                found.texts[path.name] = opened.read(name).decode()
            elif name.endswith(CONVERTER) and "$" not in name:
                java = name.removesuffix(CONVERTER).replace("/", ".")
                found.classes[java.rpartition(".")[2]] = java
    return found
