"""The encryption of the original's API keys: AES/CBC/PKCS5Padding, one key and one IV for all."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher as Aes
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from router.errors import SettingError

KEY: Final = "cambria.secureConfig.key"
IV: Final = "cambria.secureConfig.iv"
BLOCK: Final = 16
_KEY_SIZES: Final = {16, 24, 32}
_PROPERTY: Final = re.compile(r"\s*([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*?)\s*")


class Cipher:
    """Decrypts with the key and IV of one installation, both in base64."""

    def __init__(self, key: str, iv: str) -> None:
        self._key, self._iv = _decoded(KEY, key), _decoded(IV, iv)
        if len(self._key) not in _KEY_SIZES:
            raise SettingError(
                f"{KEY} is {len(self._key)} bytes long; AES has keys of 16, 24 or 32"
            )
        if len(self._iv) != BLOCK:
            raise SettingError(f"{IV} is {len(self._iv)} bytes long; expected {BLOCK}")

    def decrypt(self, text: str) -> str:
        """Return the text behind one value, which is base64 in lines; raise ValueError."""
        data = base64.b64decode("".join(text.split()), validate=True)
        decryptor = Aes(algorithms.AES(self._key), modes.CBC(self._iv)).decryptor()
        padded = decryptor.update(data) + decryptor.finalize()
        unpadder = PKCS7(BLOCK * 8).unpadder()
        return (unpadder.update(padded) + unpadder.finalize()).decode("utf-8")


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SettingError(f"{name}: expected base64") from error


def properties(file: Path) -> dict[str, str]:
    """Return what an original's MsgRtrApi.properties sets; raise SettingError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{file}: {error}") from error
    found = (_PROPERTY.fullmatch(line) for line in lines)
    return {match[1]: match[2] for match in found if match}
