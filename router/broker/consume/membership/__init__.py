"""Who takes part in a group, and which partitions or keys each member has."""
