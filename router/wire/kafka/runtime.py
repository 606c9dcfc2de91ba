"""The base classes of generated messages: structs, messages, and collections found by key."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, TypeVar

from router.wire.kafka.definitions import MessageDefinition
from router.wire.kafka.diagnosis import explain_read, explain_write
from router.wire.kafka.errors import (
    MalformedMessageError,
    TooManyElementsError,
    UnsupportedVersionError,
)
from router.wire.kafka.json_form import from_json, to_json
from router.wire.kafka.parsing import parse
from router.wire.kafka.primitives import UNBOUNDED

T = TypeVar("T")
M = TypeVar("M", bound="KafkaMessage")

Reader = Callable[[bytes, int, int], tuple[Any, int]]
Writer = Callable[[Any], list[Any]]

UNSET: Final[Any] = object()
"""The argument that stands for a default which each instance has for itself."""

# What a generated function may meet in bytes or values that are none of the message's.
_FAILURES: Final = (
    ValueError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
)


class Struct:
    """A struct of a message; equal to another one of its class with equal fields."""

    __slots__ = ("unknown_tagged_fields",)
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.unknown_tagged_fields == other.unknown_tagged_fields and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__slots__]
        if self.unknown_tagged_fields:
            shown.append(f"unknown_tagged_fields={self.unknown_tagged_fields!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    unknown_tagged_fields: tuple[tuple[int, bytes], ...]
    """Tags and contents that the definition does not know, in the order of the wire."""


class KafkaMessage(Struct):
    """A message that represents every version of it (seed: MessageData Objects)."""

    __slots__ = ()

    DEFINITION: ClassVar[str]
    """The text of the definition; it is read when an error or JSON needs it."""
    STRUCTS: ClassVar[Mapping[str, type[Struct]]]
    READERS: ClassVar[Mapping[int, Reader]]
    WRITERS: ClassVar[Mapping[int, Writer]]
    _definition: ClassVar[MessageDefinition | None] = None

    @classmethod
    def definition(cls) -> MessageDefinition:
        """Return the definition that the class was compiled from."""
        if cls._definition is None:
            cls._definition = parse(cls.DEFINITION, f"{cls.__name__}.json")
        return cls._definition

    @classmethod
    def read(
        cls: type[M], buffer: bytes, version: int, start: int = 0, max_elements: int = UNBOUNDED
    ) -> M:
        """Return the message at an offset; raise MalformedMessageError.

        Raises UnsupportedVersionError for a version that the message does not have. Bytes after
        the message are left alone. `max_elements` bounds the elements of all its arrays.
        """
        return cls.read_from(buffer, version, start, max_elements)[0]

    @classmethod
    def read_from(
        cls: type[M], buffer: bytes, version: int, start: int = 0, max_elements: int = UNBOUNDED
    ) -> tuple[M, int]:
        """Return the message at an offset and the offset after it; raise as `read` does."""
        try:
            reader = cls.READERS[version]
        except KeyError:
            raise cls._unsupported(version) from None
        if type(buffer) is not bytes:
            buffer = bytes(buffer)
        try:
            return reader(buffer, start, max_elements)
        except TooManyElementsError:
            sentence = f"it has more than {max_elements} elements"
            raise MalformedMessageError(cls.__name__, version, "", sentence) from None
        except _FAILURES as error:
            raise explain_read(cls.definition(), version, buffer[start:], error) from None

    def write(self, version: int) -> bytes:
        """Return the bytes of a version; raise UnwritableMessageError.

        A field that the version lacks has its default or is ignorable. Raises
        UnsupportedVersionError for a version that the message does not have.
        """
        return self._joined(version)

    def frame(self, version: int, header: bytes) -> bytes:
        """Return header and message behind their size, as on a connection; raise as `write`."""
        return self._joined(version, header)

    def _joined(self, version: int, header: bytes | None = None) -> bytes:
        try:
            writer = self.WRITERS[version]
        except KeyError:
            raise self._unsupported(version) from None
        try:
            parts = writer(self)
            if header is not None:
                parts[:0] = (len(header) + sum(map(len, parts))).to_bytes(4), header
            return b"".join(parts)
        except _FAILURES as error:
            raise explain_write(self.definition(), version, self, error) from None

    def size(self, version: int) -> int:
        """Return how many bytes `write` makes; raise as it does."""
        return len(self.write(version))

    def to_json(self, version: int) -> Any:
        """Return the message in Kafka's JSON form; raise UnwritableMessageError."""
        self.write(version)
        return to_json(self.definition(), version, self)

    @classmethod
    def from_json(cls: type[M], value: Any, version: int) -> M:
        """Return the message that Kafka's JSON form holds; raise MalformedMessageError."""
        if version not in cls.READERS and version not in cls.definition().valid:
            raise cls._unsupported(version)
        found: M = from_json(cls, value, version)
        return found

    @classmethod
    def _unsupported(cls, version: int) -> UnsupportedVersionError:
        sentence = f"the message has the versions {cls.definition().valid}"
        return UnsupportedVersionError(cls.__name__, version, "", sentence)


class Collection(list[T], Generic[T]):
    """A list whose elements are found by key in constant time; the order is kept.

    The key of an element does not change while it is in the collection.
    """

    __slots__ = ("_index",)
    KEY: ClassVar[tuple[str, ...]] = ()

    def __init__(self, elements: Iterable[T] = ()) -> None:
        super().__init__(elements)
        self._index: dict[Any, T] | None = None

    def find(self, *key: Any) -> T | None:
        """Return the first element with the values of the key's fields, or None."""
        if self._index is None:
            of = attrgetter(*self.KEY)
            self._index = {of(element): element for element in reversed(self)}
        return self._index.get(key[0] if len(key) == 1 else key)

    def append(self, element: T) -> None:
        """Add an element as the last one."""
        super().append(element)
        if self._index is not None:
            self._index.setdefault(attrgetter(*self.KEY)(element), element)


def _drops_index(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of list for collections, which are looked up by a new index after it."""

    @wraps(method)
    def changed(self: Collection[Any], *arguments: Any, **options: Any) -> Any:
        self._index = None
        return method(self, *arguments, **options)

    return changed


for _name in (
    *("extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
):
    setattr(Collection, _name, _drops_index(getattr(list, _name)))
