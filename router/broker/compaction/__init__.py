"""What keys make of a log: the newest message of each, and the removal of those before it.

- `KeyIndexes` has the index of each partition in which keys are looked up; a `PartitionIndex` is
  brought up to date with its log before it answers.
- `Cleaner` deletes superseded messages of the topics whose cleanup policy is compaction; `Pace`
  leaves publishing its share of the time.
"""

from router.broker.compaction.cleaner import Cleaner, Pace
from router.broker.compaction.indexes import KeyIndexes, PartitionIndex

__all__ = ["Cleaner", "KeyIndexes", "Pace", "PartitionIndex"]
