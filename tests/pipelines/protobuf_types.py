"""Message types of Protobuf that are compiled for a test, as programs compile theirs."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from router.model import Schema, SchemaType


class CompiledType:
    """A message type: `make(field=…)` makes messages, `schema` is what a topic has of it."""

    def __init__(self, files: descriptor_pb2.FileDescriptorSet, name: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self.make: Any = GetMessageClass(pool.FindMessageTypeByName(name))
        # Java's client writes the files of a schema in any order.
        backwards = descriptor_pb2.FileDescriptorSet(file=reversed(files.file))
        text = b64encode(backwards.SerializeToString()).decode()
        self.definition = json.dumps({"fileDescriptorSet": text, "rootMessageTypeName": name})
        self.schema = Schema(SchemaType.PROTOBUF_NATIVE, self.definition.encode())


def compiled(text: str, name: str = "shop.Order", syntax: str = "proto3") -> CompiledType:
    """Return a type of a file of definitions, whose package is `shop`."""
    with TemporaryDirectory() as folder:
        source, out = Path(folder, "shop.proto"), Path(folder, "out")
        source.write_text(f'syntax = "{syntax}"; package shop;\n{text}', "utf-8")
        known = str(Path(protoc.__file__).parent / "_proto")
        options = [f"-I{folder}", f"-I{known}", f"-o{out}", "--include_imports"]
        assert protoc.main(["", *options, str(source)]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    return CompiledType(files, name)
