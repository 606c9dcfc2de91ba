"""How topics and groups are called in Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.kafka.names import REPEATS, Names, is_internal
from router.errors import BadNameError, NotAllowedError
from router.model import TopicName

words = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True).filter(
    lambda word: word not in {".", ".."} and not is_internal(word)
)
simple = st.from_regex(r"[a-z]{1,10}", fullmatch=True)


@given(local=words)
def test_topics_of_the_default_namespace_have_their_local_name(local: str) -> None:
    names = Names("t", "n", "{group}")
    topic = TopicName("t", "n", local)
    assert names.topic(topic) == local
    assert names.local(local) == topic


@given(tenant=simple, namespace=simple, local=words)
def test_other_topics_name_their_namespace(tenant: str, namespace: str, local: str) -> None:
    topic = TopicName(tenant, namespace, local)
    assert Names("T", "N", "{group}").topic(topic) == f"{tenant}.{namespace}.{local}"


def test_what_kafka_cannot_name_is_refused() -> None:
    names = Names("t", "n", "{group}")
    with pytest.raises(BadNameError):
        names.topic(TopicName("a=b", "n", "x"))
    with pytest.raises(BadNameError):
        names.topic(TopicName("tenant", "n", "x" * 249))
    with pytest.raises(NotAllowedError):
        names.topic(TopicName("t", "n", "x", "non-persistent"))


@given(
    form=st.sampled_from(["{group}", "{group}--{topic}", "{topic}--{group}", "mr.{group}"]),
    group=words,
    topic=words,
)
def test_a_groups_name_comes_back_from_its_id(form: str, group: str, topic: str) -> None:
    names = Names("t", "n", form)
    assert names.subscription(names.group(group, topic), topic) == group


def test_groups_of_other_forms_are_none_of_ours() -> None:
    names = Names("t", "n", "{group}--{topic}")
    assert names.subscription("g--other", "topic") is None
    assert names.subscription("g", "topic") is None
    assert Names("t", "n", "{group}").subscription(f"{REPEATS}0123", "topic") is None
