"""Schemas that were found in the data are written as a declaration has them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType

from router.pipelines.declared_columns import declared
from router.pipelines.schemas import _name, _type

NAMES = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), min_size=1)
TYPES = st.recursive(
    st.sampled_from([LongType(), StringType()]),
    lambda inner: st.one_of(
        st.builds(ArrayType, inner),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
            lambda found: StructType([StructField(*field) for field in found.items()])
        ),
    ),
    max_leaves=6,
)


@given(name=NAMES, kind=TYPES)
def test_inferred_column_can_be_read_whatever_its_names(name: str, kind: DataType) -> None:
    assert list(declared(f"{_name(name)} {_type(kind)}")) == [name]
