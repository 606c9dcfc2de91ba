"""GET: delivery to a waiting poll, thousands of idle polls, and the time to the first message."""

from __future__ import annotations

import http.client
import secrets
import selectors
import socket
import statistics
import threading
import time

from bench.load import request, run
from bench.servers import router


def start(seconds: float) -> None:
    """Time from the command to the first accepted POST, on an empty folder."""
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        with router() as server:
            client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            client.request("POST", "/events/first", b"x", {"Content-Type": "text/plain"})
            assert client.getresponse().status == 200
            taken.append(time.perf_counter() - began)
    print(f"start to first accepted POST: median {statistics.median(taken):.2f} s of {len(taken)}")


def delivery(seconds: float) -> None:
    """From the start of a POST until a waiting GET has its answer."""
    with router() as server:
        print(f"POST to waiting GET: {spread(deliveries(server.port, seconds))}")


def deliveries(port: int, seconds: float, topic: str = "d") -> list[float]:
    """Return the milliseconds from the start of a POST to a waiting GET's answer, for each.

    The group is a new one, which has nothing else to get.
    """
    path = f"/events/{topic}/g{secrets.token_hex(8)}/c"
    latencies: list[float] = []
    post = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    poll = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    post.connect()
    assert post.sock is not None
    post.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def publish() -> float:
        began = time.perf_counter()
        post.request("POST", f"/events/{topic}", b"x" * 1024, {"Content-Type": "text/plain"})
        post.getresponse().read()
        return began

    publish()
    poll.request("GET", f"{path}?timeout=0")
    poll.getresponse().read()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        answered: list[float] = []

        def wait(answered: list[float] = answered) -> None:
            poll.request("GET", f"{path}?timeout=20000")
            body = poll.getresponse().read()
            answered.append(time.perf_counter())
            assert len(body) > 1024, body[:80]

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.02)
        began = publish()
        waiter.join(30)
        latencies.append((answered[0] - began) * 1000)
    post.close()
    poll.close()
    return latencies


def spread(latencies: list[float]) -> str:
    """Return the percentiles of some latencies in words."""
    ranked = sorted(latencies)
    return (
        f"p50 {ranked[len(ranked) // 2]:.2f} ms, "
        f"p99 {ranked[int(len(ranked) * 0.99)]:.2f} ms of {len(ranked)}"
    )


def make_topics(port: int) -> None:
    """Make the topics `i0` to `i99`."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for i in range(100):
        client.request("POST", f"/events/i{i}", b"x", {"Content-Type": "text/plain"})
        assert client.getresponse().read()
    client.close()


def begin(port: int, polls: int) -> list[socket.socket]:
    """Begin so many polls of the topics `i0` to `i99`, each of a group of its own."""
    begun = []
    for i in range(polls):
        sock = socket.create_connection(("127.0.0.1", port), 30)
        sock.sendall(request("GET", f"/events/i{i % 100}/g{i // 100}/c?timeout=110000"))
        begun.append(sock)
    return begun


def readable(socks: list[socket.socket]) -> int:
    """Return on how many of these something came, be it their end."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        return len(selector.select(0))


def idle(seconds: float) -> None:
    """Five thousand idle long-polls: memory for each, and a POST's latency meanwhile."""
    polls = 5000
    with router() as server:
        run(server.port, [request("POST", "/events/busy", b"x" * 1024)], 8, 2.0)
        make_topics(server.port)
        before = server.memory()
        waiting = begin(server.port, polls)
        time.sleep(5)
        answered = readable(waiting)
        each = (server.memory() - before) / polls / 1024
        result = run(server.port, [request("POST", "/events/busy", b"x" * 1024)], 8, seconds)
        print(
            f"{polls} idle polls ({answered} answered early): {each:.1f} KiB each; POST c=8 "
            f"meanwhile {result.rate():.0f} req/s, p50 {result.percentile(50):.2f}, "
            f"p99 {result.percentile(99):.2f} ms, errors {result.errors}"
        )
        for sock in waiting:
            sock.close()
