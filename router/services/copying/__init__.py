"""Copying topics from one store to another, so that each message is there once."""
