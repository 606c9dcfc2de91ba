"""The table of errors, compared with that of nats-server's own module."""

from __future__ import annotations

import json

import pytest

from router.wire.nats.jetstream.errors import ErrorCode, error
from tests.servers.golang import NATS_SERVER, module_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def theirs() -> dict[int, tuple[int, str]]:
    folder = module_folder(NATS_SERVER, "github.com/nats-io/nats-server/v2")
    listed = json.loads((folder / "server" / "errors.json").read_bytes())
    return {one["error_code"]: (one["code"], one["description"]) for one in listed}


def test_each_code_has_the_status_and_the_description_of_the_server(
    theirs: dict[int, tuple[int, str]],
) -> None:
    ours = {int(code): (code.http_status, code.description) for code in ErrorCode}
    assert ours == {code: theirs[code] for code in ours}


def test_a_description_is_filled_in() -> None:
    assert error(10071, seq=3).description == "wrong last sequence: 3"
    with pytest.raises(KeyError):
        error(10071)
    with pytest.raises(KeyError):
        error(1)
