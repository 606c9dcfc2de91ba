"""Moving in: what an original Message Router keeps in ZooKeeper, written to our registry."""
