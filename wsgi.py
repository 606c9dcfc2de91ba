"""The application for WSGI servers: `gunicorn -c config/gunicorn.py wsgi:app`."""

from router.app import create_app

app = create_app()
