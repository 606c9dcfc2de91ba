"""Scenarios' calls with a program in another language: a line of JSON for each call and answer."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kafka.clients import SECONDS, SESSION_MS, ClientError, KafkaClient, Read, Record
from tests.servers import maven
from tests.servers.golang import KAFKA, built
from tests.servers.java import FAST_START

COMPILE_SECONDS = 300.0
JAVA = Path(__file__).parent.parent / "java"
JARS = {"java-3.9.2": "kafka-clients-3", "java-4.4.0": "kafka-clients"}
"""The pins of Maven by the names of clients."""


class ProgramError(Exception):
    """A program failed in a way that no answer of a broker explains."""


class Program(KafkaClient):
    """A program that runs until `close`; `load` has Java's produce numbers meanwhile."""

    def __init__(self, name: str, command: Sequence[str], bootstrap: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [*command, bootstrap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def topics(self) -> list[str]:
        return list(self._call("topics"))

    def create(self, topic: str, partitions: int = 1) -> None:
        self._call("create", topic=topic, partitions=partitions)

    def delete(self, topic: str) -> None:
        self._call("delete", topic=topic)

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        return list(
            self._call(
                "produce",
                topic=topic,
                partition=partition,
                codec=codec,
                idempotent=idempotent,
                records=[_shown(record) for record in records],
            )
        )

    def read(self, topic: str, offset: int, count: int, partition: int = 0) -> list[Read]:
        found = self._call("read", topic=topic, partition=partition, offset=offset, count=count)
        return [Read(one["offset"], _record(one)) for one in found]

    def times(self, topic: str, timestamps: Sequence[int], partition: int = 0) -> list[int]:
        call = self._call("times", topic=topic, partition=partition, timestamps=list(timestamps))
        return list(call)

    def ends(self, topic: str, partition: int = 0) -> tuple[int, int]:
        first, after = self._call("ends", topic=topic, partition=partition)
        return first, after

    def join(
        self,
        member: str,
        group: str,
        topic: str,
        assignor: str = "eager",
        *,
        instance: str | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        """Become a member; the program in Go has the session timeout SESSION_MS and no instance."""
        self._call(
            "join",
            member=member,
            group=group,
            topic=topic,
            assignor=assignor,
            instance=instance or "",
            session=session_ms,
        )

    def events(self, member: str) -> list[str]:
        """Return what the member was told of rebalances; Java's program only, like the next one."""
        return list(self._call("events", member=member))

    def membership(self, member: str) -> str:
        return str(self._call("membership", member=member))

    def poll(self, member: str, seconds: float) -> list[tuple[int, int]]:
        found = self._call("poll", member=member, count=int(seconds * 1000))
        return [(partition, offset) for partition, offset in found]

    def assignment(self, member: str) -> list[int]:
        return sorted(self._call("assignment", member=member))

    def commit(self, member: str) -> None:
        self._call("commit", member=member)

    def leave(self, member: str) -> None:
        self._call("leave", member=member)

    def write_transactions(self, topic: str, name: str) -> bool:
        """Commit a, c and e and abort b under a transactional id; franz-go's, like the next two.

        Returns whether the producer of d was fenced by that of e.
        """
        return bool(self._call("write transactions", topic=topic, group=name))

    def copy_transactions(
        self, source: str, target: str, name: str, count: int, *, assignor: str = "range"
    ) -> int:
        """Copy records exactly once, as a group and a transactional id of a name; return commits.

        The first transaction is aborted. The assignor `server` is the protocol of KIP-848.
        """
        call = {"topic": source, "member": target, "group": name, "assignor": assignor}
        return int(self._call("copy transactions", **call, count=count))

    def committed(self, topic: str, count: int) -> list[str]:
        """Return the first values of partition 0 that a committed reader gets."""
        return list(self._call("committed", topic=topic, count=count))

    def load(self, topic: str) -> None:
        """Begin to produce the numbers from 0 on, to two partitions in turn."""
        self._call("load", topic=topic)

    def acknowledged(self) -> int:
        """Return how many numbers were acknowledged."""
        return int(self._call("loaded"))

    def unload(self) -> tuple[int, int]:
        """End it; return how many numbers were sent, and how many failed."""
        sent, failed = self._call("unload")
        return sent, failed

    def close(self) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(SECONDS)
            finally:
                process.kill()

    def _call(self, op: str, **arguments: Any) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Timer(2 * SECONDS, process.kill)
        overdue.start()
        try:
            process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            overdue.cancel()
        if not line:
            raise ProgramError(f"{self.name} ended in {op}")
        answer = json.loads(line)
        if "code" in answer:
            raise ClientError(answer["code"])
        if "error" in answer:
            raise ProgramError(f"{self.name}, {op}: {answer['error']}")
        return answer["ok"]


def java(version: str, folder: Path, bootstrap: str) -> Program:
    """Compile the program with a version of the Java client, and start it."""
    jars = maven.classpath(JARS[version])
    compiled("Driver", jars, folder)
    start = ["java", "-Xmx192m", *FAST_START, "-cp", f"{jars}:{folder}", "Driver"]
    return Program(version, start, bootstrap)


def compiled(program: str, jars: str, folder: Path) -> Path:
    """Compile one of the programs in Java into a folder, if it is not there; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / f"{program}.class").exists():
        command = [
            "javac",
            "-nowarn",
            "-cp",
            jars,
            "-d",
            str(folder),
            str(JAVA / f"{program}.java"),
        ]
        done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
        assert done.returncode == 0, done.stderr.decode()
    return folder


def franz_go(bootstrap: str) -> Program:
    """Start the program with franz-go."""
    return Program("franz-go", [str(built(KAFKA)), "franz-go"], bootstrap)


def kafka_go(bootstrap: str) -> Program:
    """Start the program with kafka-go."""
    return Program("kafka-go", [str(built(KAFKA)), "kafka-go"], bootstrap)


def _shown(record: Record) -> dict[str, Any]:
    return {
        "key": _hex(record.key),
        "value": _hex(record.value),
        "headers": [[name, _hex(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
    }


def _record(shown: dict[str, Any]) -> Record:
    headers = tuple((name, _bytes(value)) for name, value in shown["headers"])
    return Record(_bytes(shown["value"]), _bytes(shown["key"]), headers, shown["timestamp"])


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(value)
