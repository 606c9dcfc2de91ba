"""The message types that schemas of PROTOBUF_NATIVE describe, by the descriptors that they hold."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from router.errors import InvalidSchemaError
from router.model import Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto


def message_type(schema: Schema) -> Descriptor:
    """Return the type of a topic's messages; raise InvalidSchemaError.

    A definition is JSON: `fileDescriptorSet` in base64, and `rootMessageTypeName`. Java's client
    writes the files in any order, while a pool takes each after those that it imports.
    """
    try:
        definition = json.loads(schema.data)
        files = descriptor_pb2.FileDescriptorSet.FromString(
            b64decode(definition["fileDescriptorSet"])
        ).file
        pool = descriptor_pool.DescriptorPool()
        for file in _in_order(files):
            pool.Add(file)
        return pool.FindMessageTypeByName(definition["rootMessageTypeName"])
    except (ValueError, KeyError, TypeError, DecodeError) as error:
        raise InvalidSchemaError(f"the descriptors cannot be read: {error}") from error


def _in_order(files: Sequence[FileDescriptorProto]) -> list[FileDescriptorProto]:
    """Return files behind those that they import.

    Those that wait for one that is not there, or for themselves, are the last: the pool refuses
    them.
    """
    importers: dict[str, list[int]] = {}
    lacking = [len(set(file.dependency)) for file in files]
    for place, file in enumerate(files):
        for name in set(file.dependency):
            importers.setdefault(name, []).append(place)
    ready = [place for place, count in enumerate(lacking) if not count]
    for place in ready:  # it grows
        for importer in importers.pop(files[place].name, ()):
            lacking[importer] -= 1
            if not lacking[importer]:
                ready.append(importer)
    left = [place for place, count in enumerate(lacking) if count]
    return [files[place] for place in (*ready, *left)]
