"""The generated module is what the definition says."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from router.wire.pulsar import pulsar_pb2

PROTO = "router/wire/pulsar/pulsar.proto"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder in which the definition lies where the generated module says it came from."""
    copy = tmp_path / PROTO
    copy.parent.mkdir(parents=True)
    copy.write_bytes((files("router.wire.pulsar") / "pulsar.proto").read_bytes())
    return tmp_path


def test_generated_module_holds_the_definition(root: Path) -> None:
    compiled = root / "compiled"
    assert protoc.main(["", f"-I{root}", f"--descriptor_set_out={compiled}", PROTO]) == 0
    (definition,) = FileDescriptorSet.FromString(compiled.read_bytes()).file
    # protoc leaves out what is the default in one way and not in the other; compare what is said.
    definition.ClearField("source_code_info")
    generated = type(definition).FromString(pulsar_pb2.DESCRIPTOR.serialized_pb)
    for file in (definition, generated):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert generated == definition


@pytest.mark.parametrize("kind", ["py", "pyi"])
def test_generated_files_are_what_the_compiler_writes(root: Path, kind: str) -> None:
    flag = {"py": "--python_out", "pyi": "--pyi_out"}[kind]
    assert protoc.main(["", f"-I{root}", f"{flag}={root}", PROTO]) == 0
    written = (root / PROTO).with_name(f"pulsar_pb2.{kind}").read_text()
    assert (files("router.wire.pulsar") / f"pulsar_pb2.{kind}").read_text() == written
