"""JSON objects of an input, as it comes: one after the other, and in arrays of any length.

The standard library's decoder says where an object ends; what it reads is thrown away but for the
key, and the message is the text between. An object that is not there as a whole is tried again when
twice as much of it is there, so that one on many lines costs little.
"""

from __future__ import annotations

import codecs
import json
from typing import Any, Final, NoReturn

from router.errors import BadJsonError, MessageTooLargeError
from router.model import Message
from router.quoting import quoted

KEY: Final = "cambria.partition"
_BLANKS: Final = " \t\n\r"
_LONGEST_TOKEN: Final = 16
"""How far before the end of the text an error may be that more text mends."""


def _no_constant(name: str) -> NoReturn:
    raise BadJsonError(f"{name} is no JSON.")


# Numbers become the length of their text: nothing needs them, and a huge one may cost or fail.
_decoder: Final[Any] = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_no_constant)


class DocumentReader:
    """Takes bytes as they come and returns the objects that they complete; `longest` in bytes."""

    def __init__(self, key: bytes | None, longest: int) -> None:
        self._key = key
        self._longest = longest
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._next_try = 0
        self._in_array = False
        self._need_comma = False
        self._count = 0

    def receive(self, data: bytes, *, final: bool = False) -> list[Message]:
        """Return the messages of objects that are whole now; `final`: there is no more data.

        Raises BadJsonError, MessageTooLargeError.
        """
        try:
            self._text += self._decode.decode(data, final)
        except UnicodeDecodeError as error:
            raise self._bad("it is not UTF-8") from error
        if len(self._text) < self._next_try and not final:
            return []
        found, at = [], self._skip(0)
        while at < len(self._text) and (read := self._object(at, final)) is not None:
            message, at = read
            found.append(message)
            at = self._skip(at)
        self._text = self._text[at:]
        self._next_try = 2 * len(self._text)
        if len(self._text) > self._longest:
            raise MessageTooLargeError(f"The input has an object of over {self._longest} bytes.")
        if final and self._in_array:
            raise self._bad("the array does not end")
        return found

    def _skip(self, at: int) -> int:
        """Return where the next object begins, behind blanks and what is between objects."""
        text = self._text
        while at < len(text):
            character = text[at]
            if character == "[" and not self._in_array:
                self._in_array, self._need_comma = True, False
            elif character == "]" and self._in_array:
                self._in_array = False
            elif character == "," and self._in_array and self._need_comma:
                self._need_comma = False
            elif character == "{" and not (self._in_array and self._need_comma):
                return at
            elif character not in _BLANKS:
                raise self._bad(f"expected an object, got {quoted(text[at : at + 20])}")
            at += 1
        return at

    def _object(self, at: int, final: bool) -> tuple[Message, int] | None:
        """Return the message of the object there and where it ends; None: it is not whole."""
        try:
            value, end = _decoder.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated string")
            if not final and (is_cut or error.pos >= len(self._text) - _LONGEST_TOKEN):
                return None
            raise self._bad(error.msg[:1].lower() + error.msg[1:]) from error
        except RecursionError as error:
            raise self._bad("it is nested too deep") from error
        self._count += 1
        self._need_comma = True
        named = value.get(KEY)
        key = named.encode() if isinstance(named, str) and named else self._key
        return Message(self._text[at:end].encode(), key), end

    def _bad(self, sentence: str) -> BadJsonError:
        return BadJsonError(f"Object {self._count + 1} of the input: {sentence}.")
