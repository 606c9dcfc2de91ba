"""JetStream consumers: what each was delivered and has acknowledged, and who is next."""
