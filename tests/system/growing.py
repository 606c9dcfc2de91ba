"""An installation that grows under traffic: nginx, old and new nodes, a copy that may be killed.

`Traffic` publishes through nginx and polls through it, as legacy clients do, and a Kafka client
reads beside them from whichever server it is given; what they see is judged by `audit`. `Copy` runs
`router copy --follow` as an operator does, again after each kill. `Page` runs the commands of
docs/growing.md in a folder, with the addresses of the test's servers for those of the page.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pulsar
from kafka import KafkaConsumer
from kafka.errors import KafkaError

from tests.deploy.nginx import Nginx
from tests.docs.console import ROOT, Step, steps_of
from tests.ports import free_port
from tests.system.audit import Audit, Delivery, Post, Report
from tests.system.nodes import Client, Served, until_true
from tests.system.traffic import TEXT

# Between two posts of a publisher; how fast they are is not tested.
PACE = 0.15
# A poll waits so long, as legacy clients' do: beyond the time that a step of a move takes.
LONG_POLL = 15.0
PATIENCE = 40.0
SETTLING = 1.5
ENDED = "ended-with"
# What listens on loopback on the page: routers, and the first one's listeners.
PORTS = ("3904", "3905", "3906", "3907", "3908", "3909", "9095", "9096", "6650")
# Positions are copied each second: what a group was given so long before a switch may come again.
SYNCED = 5.0
TOPIC = "orders"
PARTITIONS = 4
LABELS = ("s0", "s1", "s3", "s6", "s13", "s21")


class Publisher(Client):
    """Posts numbers under one key; a number is never posted twice, whatever was answered."""

    def __init__(self, nodes: Sequence[Served], label: str, posts: list[Post]) -> None:
        super().__init__(nodes, PATIENCE)
        self.label = label
        self.path = f"/events/{TOPIC}?partitionKey={label}"
        self.posts = posts
        self.number = 0

    def step(self, client: http.client.HTTPConnection) -> int | None:
        """Post the next number."""
        message, sent, status = f"{self.label}:{self.number}", time.monotonic(), 0
        self.number += 1
        leave_ended(client)
        try:
            client.request("POST", self.path, message.encode(), TEXT)
            with client.getresponse() as answer:
                answer.read()
            status = answer.status
        finally:
            self.posts.append(Post(message, sent, status))
        self.stopping.wait(PACE)
        return None if status == 200 else status


def leave_ended(client: http.client.HTTPConnection) -> None:
    """Close a connection that ended while it was idle, as HTTP clients with a pool do."""
    if client.sock is not None and select.select([client.sock], [], [], 0)[0]:
        client.close()


class Subscriber(Client):
    """Polls with one id of a group, as legacy subscribers do: the next poll follows an answer."""

    def __init__(
        self,
        nodes: Sequence[Served],
        group: str,
        consumer: str,
        deliveries: list[Delivery],
        limit: int = 500,
        pause: float = 0.0,
    ) -> None:
        super().__init__(nodes, PATIENCE)
        self.group, self.consumer = group, consumer
        query = f"timeout={round(LONG_POLL * 1000)}&limit={limit}&from=earliest"
        self.path = f"/events/{TOPIC}/{group}/{consumer}?{query}"
        self.deliveries = deliveries
        self.pause = pause

    def step(self, client: http.client.HTTPConnection) -> int | None:
        """Poll once."""
        leave_ended(client)
        client.request("GET", self.path)
        with client.getresponse() as answer:
            body = answer.read()
        if answer.status != 200:
            return answer.status
        if messages := json.loads(body):
            delivery = Delivery(self.group, self.consumer, time.monotonic(), tuple(messages))
            self.deliveries.append(delivery)
        self.stopping.wait(self.pause)
        return None

    def hang_up(self) -> None:
        """End, and with it the poll that waits."""
        self.stopping.set()
        for client in self._clients:
            with contextlib.suppress(OSError, AttributeError):  # it may have no socket just now
                client.sock.shutdown(socket.SHUT_RDWR)


class KafkaMember(threading.Thread):
    """Kafka's own client as the one member of a group; commits what it was given, each time."""

    def __init__(self, address: str, group: str, deliveries: list[Delivery]) -> None:
        super().__init__(daemon=True)
        self.address, self.group, self.deliveries = address, group, deliveries
        self.stopping = threading.Event()
        self.errors: list[KafkaError] = []

    def run(self) -> None:
        """Read until told; the position stays where the last commit put it."""
        consumer = KafkaConsumer(
            TOPIC,
            bootstrap_servers=self.address,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=200,
        )
        with contextlib.closing(consumer):
            while not self.stopping.is_set():
                try:
                    found = consumer.poll(300)
                    at = time.monotonic()
                    for records in found.values():
                        values = tuple(record.value.decode() for record in records)
                        self.deliveries.append(Delivery(self.group, "kafka", at, values))
                    if found:
                        consumer.commit()
                except KafkaError as error:
                    self.errors.append(error)
                    self.stopping.wait(0.2)

    def end(self) -> None:
        """Leave the group."""
        self.stopping.set()
        self.join(PATIENCE)
        assert not self.is_alive(), "the Kafka client does not end"


class Traffic:
    """Publishers and subscribers of one topic through nginx, and what they saw.

    `billing` has two ids and `audit` one: they keep up. `slow` reads 40 messages at a time and is
    in the middle of what was there before. All of them began at the first message.
    """

    def __init__(self, site: Served) -> None:
        self.site = site
        self.audit = Audit(complete={"billing", "audit", "slow"})
        posts, given = self.audit.posts, self.audit.deliveries
        self.publishers = [Publisher([site], label, posts) for label in LABELS]
        self.subscribers = [
            Subscriber([site], "billing", "1", given),
            Subscriber([site], "billing", "2", given),
            Subscriber([site], "audit", "1", given),
            Subscriber([site], "slow", "1", given, limit=40, pause=0.1),
        ]
        self.members: list[KafkaMember] = []

    def start(self) -> None:
        """Begin, and return when messages flow."""
        self.phase("before")
        for client in (*self.publishers, *self.subscribers):
            client.start()
        self.flow(30)

    def phase(self, name: str) -> None:
        """Begin a phase."""
        self.audit.begin(name, time.monotonic())

    def join_kafka(self, address: str, group: str = "native") -> KafkaMember:
        """Have a Kafka client read at an address."""
        self.audit.complete.add(group)
        member = KafkaMember(address, group, self.audit.deliveries)
        self.members.append(member)
        member.start()
        return member

    def flow(self, seconds: float) -> None:
        """Wait until `audit` had a message of each publisher that was sent after this."""
        since = time.monotonic()

        def accepted() -> set[str]:
            return {p.message for p in self.audit.posts if p.sent > since and p.status == 200}

        def given() -> set[str]:
            found = [d for d in list(self.audit.deliveries) if d.group == "audit" and d.at > since]
            return {message for delivery in found for message in delivery.messages}

        def flows() -> bool:
            labels = {message.partition(":")[0] for message in accepted() & given()}
            return labels == set(LABELS)

        until_true(flows, seconds)

    def end(self, read: Callable[[], list[list[str]]]) -> Report:
        """Stop, let all groups have all that the store holds, and judge."""
        for publisher in self.publishers:
            publisher.stopping.set()
        for publisher in self.publishers:
            publisher.end()
        for subscriber in self.subscribers:
            subscriber.pause = 0.0
        stored = read()
        held = {message for partition in stored for message in partition}

        def complete(group: str) -> bool:
            found = [d.messages for d in list(self.audit.deliveries) if d.group == group]
            seen = {message for messages in found for message in messages}
            return held <= seen | self.audit.before.get(group, frozenset())

        # What is missing after this is found by the audit: as lost, with its names.
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not all(map(complete, self.audit.complete)):
            time.sleep(0.1)
        time.sleep(SETTLING)  # for what comes once more
        self.stop()
        self.audit.stored = read()
        return self.audit.report()

    def stop(self) -> None:
        """End all clients."""
        clients: list[Client | KafkaMember] = [
            *self.publishers,
            *self.subscribers,
            *self.members,
        ]
        for client in clients:
            client.stopping.set()
        for subscriber in self.subscribers:
            subscriber.hang_up()
        for client in clients:
            if client.is_alive():
                client.end()

    def failures(self) -> dict[str, Counter[int]]:
        """Return the statuses that clients were refused with; 0: no answer."""
        return {
            "posts": sum((p.failures for p in self.publishers), Counter()),
            "polls": sum((s.failures for s in self.subscribers), Counter()),
        }


@contextlib.contextmanager
def running(site: Served) -> Iterator[Traffic]:
    """Give traffic that ends with the block, however that ends."""
    traffic = Traffic(site)
    try:
        yield traffic
    finally:
        traffic.stop()


def fill(address: str, messages: int, size: int) -> None:
    """Publish so many messages of so many bytes for each partition, in large requests."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as client:
        for label in LABELS[:PARTITIONS]:
            for begin in range(0, messages, 500):
                numbers = range(begin, min(begin + 500, messages))
                lines = [f"old-{label}:{number}:{'x' * size}" for number in numbers]
                path = f"/events/{TOPIC}?partitionKey={label}"
                client.request("POST", path, "\n".join(lines).encode(), TEXT)
                with client.getresponse() as answer:
                    said = answer.read()
                assert answer.status == 200, said


def read_pulsar(url: str, topic: str, partitions: int) -> list[list[str]]:
    """Return what each partition of a topic has stored in Pulsar, by its official client."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    found: list[list[str]] = []
    try:
        for number in range(partitions):
            name = f"persistent://public/default/{topic}-partition-{number}"
            reader = client.create_reader(name, pulsar.MessageId.earliest)
            values = []
            while reader.has_message_available():
                values.append(reader.read_next(timeout_millis=20_000).data().decode())
            reader.close()
            found.append(values)
    finally:
        client.close()
    return found


class Site(Nginx):
    """nginx as deployed, before one node; `bin/nginx` of the folder is it for a shell."""

    def __init__(self, folder: Path, port: int, node: int) -> None:
        super().__init__(folder, port, [node])
        program = folder / "bin" / "nginx"
        program.parent.mkdir()
        command, *rest = self.command()
        program.write_text(f'#!/bin/sh\nexec {shlex.join([command, *rest])} "$@"\n')
        program.chmod(0o755)


class Copy:
    """`router copy FROM TO --follow`, begun again as an operator does when it ended."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.log = folder / "copy.log"
        self.arguments = ["copy", *arguments, "--follow"]
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin, or go on where the last one was."""
        self.starts += 1
        command = [sys.executable, "-m", "router", *self.arguments]
        self.mark = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        """What it said since its last start."""
        return self.log.read_bytes()[self.mark :].decode(errors="replace")

    def kill(self) -> None:
        """Kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def level(self, seconds: float) -> None:
        """Wait until it says that both are level; begin it again if it ended with a failure."""
        until = time.monotonic() + seconds
        while "level" not in self.said.lower():
            self.tended()
            assert time.monotonic() < until, f"not level: {self.said[-2000:]}"
            time.sleep(0.1)

    def tended(self) -> bool:
        """Begin it again if it ended because an end was away; return that it runs."""
        assert self.process is not None
        if (status := self.process.poll()) is not None:
            assert status in {os.EX_UNAVAILABLE, os.EX_TEMPFAIL}, (status, self.said[-2000:])
            self.start()
        return True

    def interrupt(self) -> int:
        """End it as Ctrl-C does; return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


class Shell:
    """One bash with job control, in which commands of docs/growing.md run as typed.

    `places` are the test's addresses and paths for those that the page has. What runs in the
    background goes on until `close`.
    """

    def __init__(self, folder: Path, places: Mapping[str, str], path: Path) -> None:
        self.folder = folder
        self.places = places
        programs = [str(path), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._lines: queue.Queue[str] = queue.Queue()
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=os.environ | {"PATH": os.pathsep.join(programs)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # with the tests ends what the shell began, however they end
        self._send("set -m; trap 'kill $(jobs -p)' EXIT", 10)

    def run(self, step: Step, seconds: float = 120) -> str:
        """Run one command; fails when it fails, or prints other things than the page shows."""
        command = self.placed(step.command)
        status, printed = self._send(command, seconds)
        print(f"$ {command}\n{printed}")  # noqa: T201 # what pytest shows of a failure
        assert status == 0, f"{command}: {status}: {printed}\n{self._logs()}"
        shown = Step(step.command, self.placed(step.output))
        assert not step.output or shown.matches(printed), f"{command}: {printed}"
        return printed

    def variable(self, name: str) -> str:
        """Return the value of a variable of the shell."""
        return self._send(f'echo "${name}"', 10)[1].strip()

    def write_files(self, text: str) -> None:
        """Write the files that a text shows: blocks that begin with `# NAME`."""
        for block in re.findall(r"^```ini\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            name = block.partition("\n")[0].removeprefix("# ")
            (self.folder / name).write_text(self.placed(block))

    def placed(self, text: str) -> str:
        """Return a text of the page with the test's places, each put in once."""
        longest = sorted(self.places, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest))
        return re.sub(pattern, lambda found: self.places[found[0]], text)

    def close(self) -> None:
        """Stop what runs in the background, and the shell."""
        jobs = [int(pid) for pid in self._send("jobs -p", 10)[1].split()]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in jobs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)
            with contextlib.suppress(AssertionError):
                self._send("wait", 20)
        with self._bash:
            self._bash.kill()
        self._reader.join(PATIENCE)

    def _send(self, command: str, seconds: float) -> tuple[int, str]:
        """Run a command, with nothing to read; return its status and what it printed."""
        script = self.folder / "step.sh"
        script.write_text(command + "\n")
        assert self._bash.stdin is not None
        self._bash.stdin.write(f'. ./step.sh </dev/null; echo "{ENDED} $?"\n')
        self._bash.stdin.flush()
        printed, until = "", time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                said = f"{command}: not within {seconds} s: {printed}\n{self._logs()}"
                raise AssertionError(said) from None
            text, ended, status = line.partition(ENDED)
            printed += text
            if ended:
                return int(status), printed

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line)

    def _logs(self) -> str:
        found = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in found)


class Town:
    """A folder with nginx, the page's shell, and traffic from the first section on.

    Ports that the page has are replaced by free ones; `place` says where its servers are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = {name: free_port() for name in PORTS}
        self.places = {f"127.0.0.1:{name}": f"127.0.0.1:{port}" for name, port in ports.items()}
        self.places |= {f"port = {name}\n": f"port = {port}\n" for name, port in ports.items()}
        self.places |= {f"PORT={name}": f"PORT={port}" for name, port in ports.items()}
        self.places |= {f"--port {name}": f"--port {port}" for name, port in ports.items()}
        self.places["in 3906 3907"] = f"in {ports['3906']} {ports['3907']}"
        self.places["/etc/nginx/"] = f"{folder}/nginx/"
        self.nginx = Site(folder / "nginx", free_port(), ports["3904"])
        self.shell = Shell(folder, self.places, self.nginx.folder / "bin")
        self.traffic = Traffic(self.nginx)
        self.switches: list[tuple[float, float]] = []

    def __enter__(self) -> Town:
        self.nginx.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with contextlib.ExitStack() as owned:
            owned.callback(self.nginx.stop)
            owned.callback(self.shell.close)
            owned.callback(self.traffic.stop)

    def write_files(self, title: str) -> None:
        """Write the files that a section shows."""
        self.shell.write_files(section(title))

    def follow(self, title: str, instead: Callable[[str], bool] = lambda _command: False) -> None:
        """Do what a section says; a command is left out if `instead` did something else."""
        text = section(title)
        self.shell.write_files(text)
        for step in steps_of(text):
            if instead(step.command):
                continue
            began = time.monotonic()
            old = self.nginx.serving()
            self.shell.run(step)
            if "nginx -s reload" in step.command:
                until_true(partial(self._taken_over, old), PATIENCE)
                self.switches.append((began, time.monotonic()))
            print(f"{time.monotonic() - began:.1f} s")  # noqa: T201 # for figures

    def _taken_over(self, old: set[int]) -> bool:
        """Whether none of nginx's old processes accepts: a reload returns before it is so."""
        return old.isdisjoint(self.nginx.serving())


def expect_promised(audit: Audit, report: Report, switches: Sequence[tuple[float, float]]) -> None:
    """Nothing is lost or stored twice; what is given again, or late, is so by a switch alone.

    `switches` are when each without a pause, or kill of a broker that serves, began and took
    effect. A message may be given again if it was given shortly before one, or while the last
    positions were copied; it may be late if it was posted before the end of one, and the message
    that it is behind after its begin.
    """
    posted = {post.message: post.sent for post in audit.posts}
    assert not report.lost, (
        f"{report}\n{ {place: lost[:5] for place, lost in report.lost.items()} }"
    )
    assert not report.doubled, f"{report}\n{report.doubled[:5]}"
    assert not report.denied, f"{report}\n{report.denied[:5]}"
    repeats = [
        found
        for found in report.repeats
        if not any(begin - SYNCED < found.since < end + SYNCED for begin, end in switches)
    ]
    assert not repeats, f"{report}\n{switches}\n{repeats[:5]}"
    late = [
        found
        for found in report.late
        if not any(
            posted[found.message] < end and begin < posted[found.behind] for begin, end in switches
        )
    ]
    assert not late, f"{report}\n{late[:5]}"


def section(title: str) -> str:
    """Return a section of the page."""
    page = (ROOT / "docs" / "growing.md").read_text(encoding="utf-8")
    _, found, rest = page.partition(f"\n## {title}\n")
    assert found, f"docs/growing.md has no section {title}"
    return rest.partition("\n## ")[0]
