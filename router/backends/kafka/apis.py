"""The APIs of Kafka that the backend uses: their messages, and the versions it speaks.

The messages are compiled from the definitions that kafka-python ships, each when it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

from router.kafka.definitions import definition_text
from router.wire.kafka.definitions import MessageDefinition, StructDefinition, attribute
from router.wire.kafka.engine import (
    compile_message,
    request_header_version,
    response_header_version,
)
from router.wire.kafka.runtime import KafkaMessage, Struct


class _Shape:
    """The class of a struct, and by field those of the structs in its arrays."""

    def __init__(
        self, cls: type[Struct], struct: StructDefinition, message: type[KafkaMessage]
    ) -> None:
        self._cls = cls
        self._nested = [
            (
                attribute(field.name),
                _Shape(message.STRUCTS[field.struct.name], field.struct, message),
            )
            for field in struct.fields
            if field.struct is not None and field.type.array
        ]

    def build(self, fields: Mapping[str, Any]) -> Any:
        """Return a struct with these fields, where the structs of arrays are dicts too."""
        arrays = {
            name: [shape.build(one) for one in fields[name]]
            for name, shape in self._nested
            if fields.get(name)
        }
        return self._cls(**{**fields, **arrays})


@cache
def _compiled(name: str) -> type[KafkaMessage]:
    return compile_message(definition_text(f"{name}.json"), f"{name}.json")


class ClientApi:
    """One API and the versions of it that the backend speaks; a call makes a request."""

    def __init__(self, name: str, lowest: int, highest: int) -> None:
        self.name = name
        self.versions = lowest, highest

    @cached_property
    def _definition(self) -> MessageDefinition:
        return _compiled(f"{self.name}Request").definition()

    @cached_property
    def _shape(self) -> _Shape:
        request = _compiled(f"{self.name}Request")
        return _Shape(request, self._definition.struct, request)

    @property
    def key(self) -> int:
        """Return the number of the API."""
        found = self._definition.api_key
        assert found is not None
        return found

    def __call__(self, **fields: Any) -> ApiRequest:
        """Return a request; structs in arrays are dicts, fields left out have their defaults."""
        return ApiRequest(self, self._shape.build(fields))

    def frame(
        self, request: ApiRequest, version: int, correlation_id: int, client_id: str
    ) -> bytes:
        """Return a request with its header and its size."""
        header: Any = _compiled("RequestHeader")
        made = header(
            request_api_key=self.key,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        )
        of = request_header_version(self._definition, version)
        found: bytes = request.message.frame(version, made.write(of))
        return found

    def answer(self, frame: bytes, version: int) -> tuple[int, Any]:
        """Return the correlation id and the message of a response; raise KafkaMessageError."""
        header: Any = _compiled("ResponseHeader")
        found, start = header.read_from(frame, response_header_version(self._definition, version))
        return found.correlation_id, _compiled(f"{self.name}Response").read(frame, version, start)


class ApiRequest(NamedTuple):
    """A request of an API; its version is chosen by the connection that sends it."""

    api: ClientApi
    message: Any


ADD_OFFSETS_TO_TXN: Final = ClientApi("AddOffsetsToTxn", 0, 3)
ADD_PARTITIONS_TO_TXN: Final = ClientApi("AddPartitionsToTxn", 0, 3)
API_VERSIONS: Final = ClientApi("ApiVersions", 0, 0)
CREATE_TOPICS: Final = ClientApi("CreateTopics", 2, 7)
DELETE_TOPICS: Final = ClientApi("DeleteTopics", 1, 5)
DESCRIBE_CONFIGS: Final = ClientApi("DescribeConfigs", 1, 4)
DESCRIBE_LOG_DIRS: Final = ClientApi("DescribeLogDirs", 1, 4)
END_TXN: Final = ClientApi("EndTxn", 0, 3)
FETCH: Final = ClientApi("Fetch", 4, 12)
FIND_COORDINATOR: Final = ClientApi("FindCoordinator", 4, 4)
INIT_PRODUCER_ID: Final = ClientApi("InitProducerId", 0, 4)
LIST_GROUPS: Final = ClientApi("ListGroups", 0, 5)
LIST_OFFSETS: Final = ClientApi("ListOffsets", 2, 7)
METADATA: Final = ClientApi("Metadata", 4, 13)
OFFSET_COMMIT: Final = ClientApi("OffsetCommit", 2, 8)
OFFSET_DELETE: Final = ClientApi("OffsetDelete", 0, 0)
OFFSET_FETCH: Final = ClientApi("OffsetFetch", 8, 8)
PRODUCE: Final = ClientApi("Produce", 3, 9)
SASL_AUTHENTICATE: Final = ClientApi("SaslAuthenticate", 0, 2)
SASL_HANDSHAKE: Final = ClientApi("SaslHandshake", 1, 1)
TXN_OFFSET_COMMIT: Final = ClientApi("TxnOffsetCommit", 0, 3)
