"""A broker process that knows the tiny format too; run as a module, with the broker's arguments."""

from __future__ import annotations

import sys
from typing import cast

from router.broker.__main__ import main
from router.broker.entries import ENTRY_FORMATS, EntryFormats
from tests.unit.broker.entries import tiny

if __name__ == "__main__":
    cast("EntryFormats", ENTRY_FORMATS)[tiny.TAG] = tiny.FORMATS[tiny.TAG]
    sys.exit(main())
