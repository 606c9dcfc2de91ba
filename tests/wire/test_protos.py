"""The generated modules are what the definitions say."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

PROTOS = ["pulsar", "node"]


def definition(name: str) -> str:
    return f"router/wire/{name}/{name}.proto"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder in which the definitions lie where the generated modules say they came from."""
    for name in PROTOS:
        copy = tmp_path / definition(name)
        copy.parent.mkdir(parents=True)
        copy.write_bytes((files(f"router.wire.{name}") / f"{name}.proto").read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", PROTOS)
def test_generated_module_holds_the_definition(root: Path, name: str) -> None:
    compiled = root / "compiled"
    out = f"--descriptor_set_out={compiled}"
    assert protoc.main(["", f"-I{root}", out, definition(name)]) == 0
    (defined,) = FileDescriptorSet.FromString(compiled.read_bytes()).file
    # protoc leaves out what is the default in one way and not in the other; compare what is said.
    defined.ClearField("source_code_info")
    module = import_module(f"router.wire.{name}.{name}_pb2")
    generated = type(defined).FromString(module.DESCRIPTOR.serialized_pb)
    for file in (defined, generated):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert generated == defined


@pytest.mark.parametrize("name", PROTOS)
@pytest.mark.parametrize("kind", ["py", "pyi"])
def test_generated_files_are_what_the_compiler_writes(root: Path, name: str, kind: str) -> None:
    flag = {"py": "--python_out", "pyi": "--pyi_out"}[kind]
    assert protoc.main(["", f"-I{root}", f"{flag}={root}", definition(name)]) == 0
    written = (root / definition(name)).with_name(f"{name}_pb2.{kind}").read_text()
    assert (files(f"router.wire.{name}") / f"{name}_pb2.{kind}").read_text() == written


def test_the_definition_of_the_pulsar_protocol_stands_alone() -> None:
    lines = (files("router.wire.pulsar") / "pulsar.proto").read_text().splitlines()
    assert not [line for line in lines if line.startswith("import ")]
