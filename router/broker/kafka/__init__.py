"""The APIs of Kafka's protocol, as the broker serves them."""
