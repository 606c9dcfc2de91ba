"""What an original's tree amounts to: its own classes' bytes, and damage that stays where it is."""

from __future__ import annotations

import pytest

from router.migration.cipher import Cipher
from router.migration.original import Original, read
from router.model import TopicName
from router.services.keys import ApiKey
from router.services.record_moving import MovableRecord
from router.services.rights import TopicRights
from router.sharing.registry import RegistryRecord
from tests.unit.migration.trees import IV, KEY, MemoryTree, golden

K1, K2 = "K1abcdefghijklmn", "K2abcdefghijklmn"
LOCK = Cipher(KEY, IV)


def found_in(nodes: dict[str, bytes | None], lock: Cipher | None = LOCK) -> Original:
    return read(MemoryTree(nodes, "/old"), "/old/", lock, TopicName.parse)


def record(found: MovableRecord) -> RegistryRecord:
    return RegistryRecord(found.name, found.value, 1)


def test_read_finds_everything_in_a_tree_of_the_originals_own_classes() -> None:
    original = found_in(dict(golden()))
    by_name = {(one.kind, one.name): record(one) for one in original.found}
    description = "Schl\xfcssel \u20ac \U0001f680\0"
    for name in (K1, K2):
        assert ApiKey.load(by_name["key", name]) == ApiKey(
            name, f"secret of {name}", "anna@example.org", description
        )
    made = by_name["topic", "persistent://public/default/org.onap.orders"]
    assert TopicRights.load(made) == TopicRights(K1, description="orders", transactional=True)
    listed = by_name["topic", "persistent://public/default/listed"]
    assert TopicRights.load(listed) == TopicRights(K1, readers=frozenset({K2}))
    assert {name for kind, name in by_name if kind == "blacklist"} == {"192.0.2.7", "2001:db8::7"}
    assert len(by_name) == 6
    assert len(original.unreadable) == 2
    assert "K3abcdefghijklmn: this key is disabled" in original.unreadable[0]
    assert '"no address" is no address' in original.unreadable[1]


def test_read_finds_nothing_in_an_empty_tree() -> None:
    assert found_in({}) == Original()


def test_nothing_that_is_told_holds_a_secret() -> None:
    original = found_in(dict(golden()))
    said = [one.description for one in original.found] + original.unreadable
    assert "secret" not in " ".join(said)


def test_read_says_that_keys_are_encrypted_when_it_has_no_key() -> None:
    original = found_in(dict(golden()), lock=None)
    locked = [said for said in original.unreadable if "encrypted: give --properties" in said]
    assert len(locked) == 3
    assert {one.kind for one in original.found} == {"topic", "blacklist"}


def test_read_says_that_the_key_is_wrong() -> None:
    original = found_in(dict(golden()), Cipher(IV, KEY))
    assert sum("with this key and IV" in said for said in original.unreadable) == 3


@pytest.mark.parametrize("lock", [LOCK, None])
def test_api_keys_may_stand_there_unencrypted(lock: Cipher | None) -> None:
    value = b'{"key":"K","secret":"S","aux":{}}'
    original = found_in({"/apikeys/K": value}, lock)
    assert [ApiKey.load(record(one)) for one in original.found] == [ApiKey("K", "S")]


@pytest.mark.parametrize("value", [None, b"", b"{}", b'{"owner":"","txenabled":false}'])
def test_topics_of_nobody_need_no_record(value: bytes | None) -> None:
    assert found_in({"/topics/t": value}) == Original()


DAMAGED = {
    "/apikeys/A": b"{",
    "/apikeys/B": b"[]",
    "/apikeys/C": b'{"key":"other","secret":"S"}',
    "/apikeys/D": b'{"key":"D"}',
    "/apikeys/E": b'{"key":"E","secret":7}',
    "/topics/a": b"\xac\xed\x00\x05sr",
    "/topics/b c": b'{"owner":"K"}',
    "/topics/d": b'{"owner":"K","readers":{"allowed":[1]}}',
    "/topics/e": b'{"owner":["K"]}',
    "/topics/f": b"[]",
    "/ipBlacklist": b'{"a":1}',
}


@pytest.mark.parametrize("path", DAMAGED)
def test_damage_is_told_with_its_path_and_hides_nothing_else(path: str) -> None:
    sound: dict[str, bytes | None] = {
        "/apikeys/K": b'{"key":"K","secret":"S"}',
        "/topics/t": b'{"owner":"K"}',
    }
    original = found_in(sound | {path: DAMAGED[path]})
    assert [one.name for one in original.found] == ["K", "persistent://public/default/t"]
    [said] = original.unreadable
    assert said.startswith(f"/old{path}: ")
