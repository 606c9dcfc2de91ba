"""Compaction: the newest message of each key is kept, those before it are deleted.

- `KeyIndexes` has the index of each partition in which keys are looked up; a `PartitionIndex` is
  brought up to date with its log before it answers.
- `CompactionCalls` answers which values keys have, and compacts topics on request.
- `Compactor` notes how far partitions are compacted on request; their readers get its views.
- `Cleaner` deletes superseded messages of the topics whose cleanup policy is compaction;
`CleanerPace`
  leaves publishing its share of the time.
"""

from router.broker.compaction.cleaner import Cleaner, CleanerPace
from router.broker.compaction.compactor import Compactor
from router.broker.compaction.indexes import KeyIndexes, PartitionIndex
from router.broker.compaction.table_view import CompactionCalls

__all__ = ["Cleaner", "CleanerPace", "CompactionCalls", "Compactor", "KeyIndexes", "PartitionIndex"]
