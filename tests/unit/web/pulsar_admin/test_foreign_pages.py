"""Pages of other origins change nothing by Pulsar's administration either."""

from __future__ import annotations

import pytest

from tests.unit.web import foreign
from tests.unit.web.pulsar_admin.conftest import Site


@pytest.mark.slow
@pytest.mark.parametrize("case", foreign.TLS_HEADERS)
def test_every_route_refuses_pages_of_other_origins(sites: Site, case: str) -> None:
    client = sites(only_admin=False)
    assert foreign.refused(client, foreign.TLS_HEADERS[case], "https://localhost") > 250
