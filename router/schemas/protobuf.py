"""The message types that schemas of PROTOBUF_NATIVE describe, by the descriptors that they hold."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from router.errors import InvalidSchemaError
from router.model import Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor


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
        waiting = list(files)
        added: set[str] = set()
        while waiting:
            # One that waits for a file that is not there, or for itself, is refused by the pool.
            ready = [one for one in waiting if added.issuperset(one.dependency)] or waiting
            for file in ready:
                pool.Add(file)
            added.update(file.name for file in ready)
            waiting = [one for one in waiting if one.name not in added]
        return pool.FindMessageTypeByName(definition["rootMessageTypeName"])
    except (ValueError, KeyError, TypeError, DecodeError) as error:
        raise InvalidSchemaError(f"the descriptors cannot be read: {error}") from error
