"""What topics' schemas are: which there may be, which go together, and the values they describe.

Nothing here is stored, sent or waited for: the broker's registry, backends and HTTP use it alike.
"""

from __future__ import annotations

from router.schemas.codecs import decode, decode_pair, encode, encode_pair
from router.schemas.compatibility import Strategy, check_consumer, check_follows, index_of, place
from router.schemas.definitions import MAX_DEFINITION
from router.schemas.kinds import MAX_PROPERTIES, check, equal
from router.schemas.pairs import Pair, halves, pair_schema, type_of
from router.schemas.resolution import resolver

__all__ = [
    "MAX_DEFINITION",
    "MAX_PROPERTIES",
    "Pair",
    "Strategy",
    "check",
    "check_consumer",
    "check_follows",
    "decode",
    "decode_pair",
    "encode",
    "encode_pair",
    "equal",
    "halves",
    "index_of",
    "pair_schema",
    "place",
    "resolver",
    "type_of",
]
