"""How our gunicorn worker serves HTTP.

`llhttp` accepts and stops, `connection` serves the requests of one client in order and suspends it
while it waits, `request` reads heads, `stream` moves bytes and writes answers, `chunked` reads
bodies in chunks, and `bounds` says what a client may take. `web.thread_worker` is the fallback
without gevent.
"""
