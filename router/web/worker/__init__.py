"""How a worker of gunicorn's serves HTTP: by our own reading of it, or by gunicorn's.

`listening` has what both share: accepting, TLS, the graceful stop. `stock` is gunicorn's gevent
worker with its own parser, `llhttp` is ours: `wire` moves bytes, `head` reads heads, `body` bodies,
`environ` says it in WSGI's words, `answer` writes, `connection` puts them in order.
"""
