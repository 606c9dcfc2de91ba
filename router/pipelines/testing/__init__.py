"""Tests of a pipeline without a router: sample messages in, the rows of each sink compared."""
