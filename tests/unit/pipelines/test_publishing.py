"""What a sink is called in a store, which knows by that name what it has of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.pipelines.loading import NAME
from router.pipelines.sinks.publishing import PublisherIdentity

NAMES = st.from_regex(r"[a-c][-.a-c]{0,4}", fullmatch=True)


@given(pipeline=NAMES, sink=NAMES, hyphens=st.integers(0, 8), other=st.data())
def test_name_is_of_one_sink_of_one_pipeline(
    pipeline: str, sink: str, hyphens: int, other: st.DataObject
) -> None:
    assert NAME.fullmatch(pipeline)
    assert NAME.fullmatch(sink)
    joined = f"{pipeline}-{sink}"
    cuts = [place for place, letter in enumerate(joined) if letter == "-"]
    cut = cuts[hyphens % len(cuts)]
    elsewhere = joined[:cut], joined[cut + 1 :]
    drawn = other.draw(st.one_of(st.just(elsewhere), st.tuples(NAMES, NAMES)))
    if NAME.fullmatch(drawn[1]):
        same = PublisherIdentity(*drawn, "c").name == PublisherIdentity(pipeline, sink, "c").name
        assert same == (drawn == (pipeline, sink))
