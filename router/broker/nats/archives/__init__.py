"""Streams and their consumers as archives: snapshots and restores."""
