"""Consumers that fetch and acknowledge in calls of their own, as PIP 64 has them."""
