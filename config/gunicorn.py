"""gunicorn's settings for those who start it themselves: `gunicorn -c config/gunicorn.py wsgi:app`.

They are made from the router's own settings (config/router.cfg, ROUTER_* variables). The workers
then start the node's broker themselves and it leaves after them; `router serve` supervises it.
"""

import os

from router.settings import config_file, load
from router.web.server import options

globals().update(options(load(config_file(os.environ), os.environ)))
