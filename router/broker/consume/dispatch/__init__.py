"""Delivery to connected consumers: which entry goes to which, by the kind of the subscription."""
