"""Which methods a path has, as OPTIONS and refusals of others tell it."""

from __future__ import annotations

import pytest
from flask import Flask

ADMIN = "/admin/v2"
TOPIC = f"{ADMIN}/persistent/public/default/t"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/events/t", "GET, HEAD, OPTIONS, POST"),
        ("/apiKeys/k", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("/console/topics/t/publish", "OPTIONS, POST"),
        ("/console/topics", "GET, HEAD, OPTIONS, POST"),
        (f"{ADMIN}/brokers", "GET, HEAD, OPTIONS"),
        (f"{TOPIC}/unload", "OPTIONS, PUT"),
        (TOPIC, "DELETE, OPTIONS, PUT"),
    ],
)
def test_options_and_refusals_name_the_methods_that_are_served(
    everything: Flask, path: str, methods: str
) -> None:
    client = everything.test_client()
    assert client.options(path).headers["Allow"] == methods
    refused = [method for method in ("GET", "PUT", "PATCH") if method not in methods]
    for method in refused:
        answer = client.open(path, method=method)
        assert (answer.status_code, answer.headers["Allow"]) == (405, methods)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/nowhere", "/console/nowhere", "/docs/x"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "X-ANY"])
def test_path_that_there_is_not_is_404_for_every_method(
    everything: Flask, method: str, path: str
) -> None:
    assert everything.test_client().open(path, method=method).status_code == 404


def test_path_of_the_administration_that_is_not_served_allows_nothing(everything: Flask) -> None:
    answer = everything.test_client().get(f"{ADMIN}/bookies/all")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "")
