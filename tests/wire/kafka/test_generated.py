"""Source that is generated for a folder: the same codec, and a package that stands alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from router.cli import main, status
from router.wire.kafka.engine import (
    message_source,
)
from router.wire.kafka.errors import (
    KafkaMessageError,
)
from tests.wire.kafka import reference
from tests.wire.kafka.examples import ALL_KINDS, KINDS, text_of
from tests.wire.kafka.messages import build


def test_source_for_a_folder_is_the_same_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "generated_example.py"
    path.write_text(message_source(text_of(*KINDS), "Example.json"), "utf-8")
    spec = importlib.util.spec_from_file_location("generated_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "generated_example", module)
    spec.loader.exec_module(module)
    definition = ALL_KINDS.definition()
    for version in range(4):
        value = reference.Chance(definition, version, version).message()
        message = build(module.Example, value)
        assert message.write(version) == reference.write(definition, version, value)
        assert module.Example.read(message.write(version), version) == message
    with pytest.raises(KafkaMessageError, match="Bool: 1 bytes are wanted where 0 remain"):
        module.Example.read(b"", 0)


def test_a_package_reads_and_writes_without_the_router(tmp_path: Path) -> None:
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    (definitions / "Example.json").write_text(text_of(*KINDS), "utf-8")
    arguments = ["kafka-messages", "compile", str(definitions), "--out", str(tmp_path / "made")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == status.DONE, done.output
    value = reference.Chance(ALL_KINDS.definition(), 2, 1).message()
    data = reference.write(ALL_KINDS.definition(), 2, value)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import made\n"
        f"message = made.Example.read(bytes.fromhex({data.hex()!r}), 2)\n"
        f"assert message.write(2).hex() == {data.hex()!r}\n"
        "assert made.Example.from_json(message.to_json(2), 2).size(2)\n"
        "try: made.Example.read(b'', 0)\n"
        "except made.KafkaMessageError as error: print(error)\n"
        "assert not any(name.partition('.')[0] == 'router' for name in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout.startswith("Example v0, Bool: ")
