"""Kafka's protocol: message definitions, and the codecs that are compiled from them."""
