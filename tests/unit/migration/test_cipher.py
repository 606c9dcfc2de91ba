"""The original's encryption: NIST's vectors, what the original wrote, and its properties file."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher as Aes
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7
from hypothesis import given
from hypothesis import strategies as st

from router.errors import SettingError
from router.migration import java
from router.migration.cipher import Cipher, properties
from tests.unit.migration.trees import IV, KEY, golden


def b64(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()


def test_decrypt_reads_what_the_original_encrypted() -> None:
    text = java.string(golden()["/apikeys/K1abcdefghijklmn"])
    assert text is not None
    assert "\n" in text, "the original breaks its base64 into lines"
    assert '"secret":"secret of K1abcdefghijklmn"' in Cipher(KEY, IV).decrypt(text)


def test_decrypt_keeps_to_the_published_vector() -> None:
    # NIST SP 800-38A, F.2.1, first block; its padding follows as a block of its own.
    key, iv = "2b7e151628aed2a6abf7158809cf4f3c", "000102030405060708090a0b0c0d0e0f"
    text = "7649abac8119b246cee98e9b12e9197d"
    padding = Aes(algorithms.AES(bytes.fromhex(key)), modes.CBC(bytes.fromhex(text))).encryptor()
    last = padding.update(b"\x10" * 16) + padding.finalize()
    with pytest.raises(UnicodeDecodeError) as opened:
        Cipher(b64(key), b64(iv)).decrypt(b64(text + last.hex()))
    assert bytes(opened.value.object).hex() == "6bc1bee22e409f96e93d7e117393172a"


@given(st.text(), st.sampled_from([16, 24, 32]))
def test_decrypt_gives_any_text_back(text: str, size: int) -> None:
    key, iv = bytes(range(size)), bytes(range(16))
    padder = PKCS7(128).padder()
    padded = padder.update(text.encode("utf-8", "replace")) + padder.finalize()
    encryptor = Aes(algorithms.AES(key), modes.CBC(iv)).encryptor()
    value = base64.encodebytes(encryptor.update(padded) + encryptor.finalize()).decode()
    opened = Cipher(base64.b64encode(key).decode(), base64.b64encode(iv).decode()).decrypt(value)
    assert opened == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("value", ["", "AA==", "not base64", "A" * 22 + "=="])
def test_decrypt_refuses_what_was_not_encrypted_so(value: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Cipher(KEY, IV).decrypt(value)


@pytest.mark.parametrize(
    ("key", "iv", "match"),
    [("?", IV, "key: expected base64"), (KEY, "AAAA", "iv is 3 bytes"), ("AAAA", IV, "16, 24")],
)
def test_cipher_refuses_keys_that_are_none(key: str, iv: str, match: str) -> None:
    with pytest.raises(SettingError, match=match):
        Cipher(key, iv)


def test_properties_are_read_as_java_does(tmp_path: Path) -> None:
    file = tmp_path / "MsgRtrApi.properties"
    file.write_text(
        "# comment=1\n! another\n\nconfig.zk.servers=zk1:2181,zk2:2181\n"
        " cambria.secureConfig.key = b/7ou==\nkafka.metadata.broker.list: kafka:9092 \nempty=\n"
    )
    assert properties(file) == {
        "config.zk.servers": "zk1:2181,zk2:2181",
        "cambria.secureConfig.key": "b/7ou==",
        "kafka.metadata.broker.list": "kafka:9092",
        "empty": "",
    }


def test_properties_are_refused_when_there_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="absent"):
        properties(tmp_path / "absent")
