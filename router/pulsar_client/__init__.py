"""A connection to a broker that speaks the Pulsar protocol: our own, or Apache Pulsar."""
