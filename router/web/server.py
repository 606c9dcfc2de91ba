"""How gunicorn serves the router: its settings, made from ours.

Why these values (measured on two cores with Flask and 256 kept-alive connections):
- A gevent worker runs the plain blocking code of the front. Its kept-alive connections would starve
  one another, p99 1,700 ms, unless each request ends by yielding to the others, p99 96 ms.
- `reuse_port` gives each worker a queue of its own, so that the kernel evens out the workers. Only
  TCP has that: of a unix socket, and of one that systemd opened, workers take turns (`share`).
- The application is loaded in each worker, after gevent has patched the standard library; loading
  it before the fork (`preload_app`) would give all workers one unpatched copy.
- No control socket: by default all gunicorns of a user would share one path.
- No `max_requests`: a worker that is replaced breaks the polls that wait in it.

A worker that shall stop calls the stop hook of the application, which answers the waiting polls,
and closes connections on which no request is under way (`web/worker/llhttp.py`). The
alternative, letting them run into `graceful_timeout`, would make every restart last that long.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, cast

from router.access.authorizer import requires_authentication
from router.backends.opening import scheme
from router.errors import SettingError
from router.log import name_process
from router.process.collecting import let_go, settle
from router.settings import Settings, readable_secrets
from router.web.addresses import trusted
from router.web.origins import is_loopback
from router.web.origins import warning as host_warning
from router.web.tls import Secure, Tls, tls_of
from router.web.worker.bounds import KEEPALIVE_SECONDS, WorkerBounds

BACKLOG: Final = 2048
STUCK_SECONDS: Final = 60  # a worker that gave no sign of life for so long is replaced
MAX_THREADS: Final = 256
CLOSE_SECONDS: Final = 1.0
# The setting `server.worker_class`; gthread reads HTTP with gunicorn's parser, without gevent.
WORKERS: Final = {
    "llhttp": "router.web.worker.llhttp.Worker",
    "gthread": "router.web.thread_worker.ThreadWorker",
}
STOP_HOOK: Final = "router.stop"
CLOSE_HOOK: Final = "router.close"
UNREAD_HOOK: Final = "router.unread"
RELOAD_HOOK: Final = "router.reload"


def options(settings: Settings) -> dict[str, Any]:
    """Return gunicorn's settings; raise SettingError for files of TLS that do not serve.

    Raises it too if unauthenticated clients on other machines could use the router.
    """
    check_exposure(settings)
    tls = tls_of(settings)
    kind = settings.text("server.worker_class")
    gevent = kind != "gthread"
    connections = settings.number("server.connections")
    return {
        "bind": [bind_address(settings.text("server.host"), port) for port in ports(settings)],
        "workers": workers(settings),
        "worker_class": WORKERS[kind],
        "worker_connections": connections,
        "threads": 1 if gevent else min(connections, MAX_THREADS),
        "backlog": BACKLOG,
        "keepalive": KEEPALIVE_SECONDS,
        "timeout": STUCK_SECONDS,
        "graceful_timeout": max(1, round(settings.seconds("server.graceful_timeout"))),
        "reuse_port": True,
        "preload_app": False,
        "control_socket_disable": True,
        # Only the connection says who the client is: no header of a client changes it, or the path.
        "forwarded_allow_ips": "",
        "forwarder_headers": "",
        "proc_name": "router",
        "loglevel": settings.text("log.level"),
        "accesslog": None if settings.text("log.access") == "off" else "-",
        "access_log_format": settings.text("log.access"),
        "on_starting": partial(starting, warnings(settings)),
        "on_reload": share,
        "post_fork": partial(begin, tls, bounds(settings)),
        "worker_exit": close,
        "logger_class": "router.web.server_log.GunicornLog",
    } | HOOKS[kind]


def bounds(settings: Settings) -> WorkerBounds:
    """Return what a client may take."""
    return WorkerBounds(
        settings.seconds("server.head_timeout"),
        settings.seconds("server.body_timeout"),
        settings.seconds("server.write_timeout"),
        settings.number("server.connections_per_address"),
        trusted(settings.words("server.trusted_proxies")),
    )


def ports(settings: Settings) -> list[int]:
    """Return the ports that the server listens on, that of HTTPS last."""
    more = settings.number("server.tls_port")
    return [settings.number("server.port"), *([more] if more else [])]


def workers(settings: Settings) -> int:
    """Return how many workers serve: as set, else one for each usable CPU; over `memory` one."""
    if scheme(settings) == "memory":
        return 1
    return settings.number("server.workers") or len(os.sched_getaffinity(0))


def bind_address(host: str, port: int) -> str:
    """Return what gunicorn binds to; an IPv6 address goes in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_exposure(settings: Settings) -> None:
    """Raise SettingError when anonymous clients of other machines could publish and subscribe."""
    if requires_authentication(settings) or settings.flag("auth.insecure"):
        return
    host = settings.text("server.host")
    if not is_loopback(host):
        raise SettingError(
            f"server.host = {host!r} is reachable from other machines and there are no users, so"
            " everybody could publish and subscribe: name a users file (auth.users, made with"
            " `router user add`) or a key of tokens (auth.token_secret_file), listen on 127.0.0.1,"
            " or say --insecure"
        )


def warnings(settings: Settings) -> list[str]:
    """Return warnings about insecure settings, to be logged before the server starts."""
    hosts = host_warning(settings)
    return [*readable_secrets(settings), *([] if hosts is None else [hosts])]


def starting(sentences: Sequence[str], arbiter: Any) -> None:
    """Begin to serve: say what the settings leave open, and share the queues."""
    for sentence in sentences:
        arbiter.log.warning("%s", sentence)
    share(arbiter)


def share(arbiter: Any) -> None:
    """Have the workers share their queues where not each of them can have its own.

    gunicorn would have each worker put a unix socket of its own in the place of the last one's, and
    ignore every socket that was handed to it.
    """
    handed = arbiter.systemd or os.environ.get("LISTEN_PID") == str(os.getpid())
    if handed or not all(isinstance(address, tuple) for address in arbiter.cfg.address):
        arbiter.cfg.set("reuse_port", False)


def begin(tls: Tls | None, bounded: WorkerBounds, _arbiter: Any, worker: Any) -> None:
    """Begin a worker: give it TLS and its bounds, and reset its signals.

    A worker that gets the signal to stop while it starts ends: the handlers it inherits wait.
    """
    name_process("worker")
    worker.tls, worker.bounds = tls, bounded
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def call_hook(worker: Any, name: str) -> None:
    """Call what a worker's application left in its `extensions` under this name, if anything."""
    application = getattr(worker, "wsgi", None)
    if hook := getattr(application, "extensions", {}).get(name):
        hook()


def close(_arbiter: Any, worker: Any) -> None:
    """Have the application end its connections and threads: the worker leaves.

    It does not wait long for a broker that has ended already, and cannot take the last counts.
    """
    let_go()
    closing = threading.Thread(target=call_hook, args=(worker, CLOSE_HOOK), daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)


def word_refusals(worker: Any) -> None:
    """Have the application word what gunicorn answers to requests that it cannot read.

    gunicorn's own words are HTML; `extensions["router.unread"]` makes body and transaction id.
    """
    from gunicorn import util  # noqa: PLC0415 - runs in workers, which have it

    word = getattr(worker.wsgi, "extensions", {}).get(UNREAD_HOOK)
    if word is None:
        return

    def refuse(client: socket.socket, status: int, reason: str, sentence: str) -> None:
        body, transaction = word(status, sentence)
        head = (
            f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\ntransactionId: {transaction}\r\n"
            "X-Content-Type-Options: nosniff\r\n\r\n"
        )
        util.write_nonblock(client, head.encode() + body)

    util.write_error = refuse


def prepare(worker: Any) -> None:
    """Prepare a worker that has loaded the application."""
    word_refusals(worker)
    # gunicorn hands it on to its workers.
    call_on_signal(worker, signal.SIGUSR1, RELOAD_HOOK)
    settle()
    if worker.tls is not None:
        worker.wsgi.wsgi_app = Secure(worker.wsgi.wsgi_app)


def prepare_threads(worker: Any) -> None:
    """Prepare a gthread worker, whose stop hook is called beside what the worker does itself."""
    prepare(worker)
    own = cast("Callable[[int, FrameType | None], None]", signal.getsignal(signal.SIGTERM))
    call_on_signal(worker, signal.SIGTERM, STOP_HOOK, own)


def call_on_signal(
    worker: Any,
    number: signal.Signals,
    hook: str,
    also: Callable[[int, FrameType | None], None] = lambda _number, _frame: None,
) -> None:
    """Have a signal call a hook, after `also`.

    The thread or greenlet that calls it waits from the start: a signal handler may set an event,
    but starting a thread there could wait for a lock that the interrupted code holds.
    """
    arrived = threading.Event()

    def wait() -> None:
        while True:
            arrived.wait()
            arrived.clear()
            call_hook(worker, hook)

    def handle(signal_number: int, frame: FrameType | None) -> None:
        arrived.set()
        also(signal_number, frame)

    threading.Thread(target=wait, name=hook, daemon=True).start()
    signal.signal(number, handle)
    signal.siginterrupt(number, False)


HOOKS: Final[dict[str, dict[str, Any]]] = {
    "llhttp": {"post_worker_init": prepare},
    "gthread": {"post_worker_init": prepare_threads},
}
