"""Tests of the console in a browser; a package, so that what they share ends with its last."""
