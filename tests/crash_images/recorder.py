"""Records what processes do to the files of a folder: `python -m tests.crash_images.recorder`.

The arguments are the folder, the file for the recording, and the command to run.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.crash_images.recording import (
    Create,
    Event,
    MakeFolder,
    RemoveFolder,
    Rename,
    Send,
    Sync,
    SyncAll,
    SyncFolder,
    Truncate,
    Unlink,
    Write,
    save,
)
from tests.crash_images.tracing import (
    Observer,
    SystemCall,
    read_memory,
    read_parts,
    read_path,
    run_traced,
)

_OPENS: Final = {"open", "creat", "openat", "openat2"}
_VECTORS: Final = {"writev", "pwritev", "pwritev2"}
_WRITES: Final = {"write", "pwrite64"} | _VECTORS
_SENDS: Final = {"write", "writev", "sendto", "sendmsg", "sendmmsg"}
_SYNCS: Final = {"fsync", "fdatasync"}
_ON_FILES: Final = _WRITES | _SYNCS | {"ftruncate", "fallocate"}
_ON_NAMES: Final[Mapping[str, Sequence[tuple[int | None, int]]]] = {
    # Where the arguments are: the folder of each path, if one is given, and the path.
    "mkdir": [(None, 0)],
    "mkdirat": [(0, 1)],
    "rmdir": [(None, 0)],
    "unlink": [(None, 0)],
    "unlinkat": [(0, 1)],
    "rename": [(None, 0), (None, 1)],
    "renameat": [(0, 1), (2, 3)],
    "renameat2": [(0, 1), (2, 3)],
    "truncate": [(None, 0)],
    "link": [(None, 0), (None, 1)],
    "linkat": [(0, 1), (2, 3)],
    "symlink": [(None, 1)],
    "symlinkat": [(1, 2)],
}
_HERE: Final = -100
_REMOVES_FOLDER: Final = 0x200
_EXCHANGES: Final = 2
TO_KILL: Final = "to-kill"
"""The file beside the recording with the id of a process that is to be killed."""
SKIPPED_ENDINGS: Final = ("-shm", ".lock", ".sock")
"""SQLite's shared memory is made new by each first connection; locks and sockets hold nothing."""


class NotRecordedError(Exception):
    """A call changed the folder in a way that the recorder has no event for."""


class Recorder(Observer):
    """Makes events of system calls on files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        self._root = str(folder)
        self._names: dict[str, int] = {}
        self._files: dict[tuple[int, int], int] = {}
        self._ports: dict[str, int] = {}
        self._begun: dict[int, int] = {}
        self._paths: dict[int, list[str | None]] = {}

    def entered(self, thread: int, call: SystemCall) -> bool:
        """Note a write to a client; return whether a call may be one on files of the folder."""
        name, arguments = call
        self._begun[thread] = len(self.events)
        if name in _ON_NAMES:
            # Before the call: it may remove the folder of a relative path.
            self._paths[thread] = [
                self._relative(_absolute(thread, arguments, *places)) for places in _ON_NAMES[name]
            ]
            return any(path is not None for path in self._paths[thread])
        if name in _OPENS or name in {"sync", "syncfs"}:
            return True
        target = _link(thread, arguments[0])
        if name in _SENDS and target.startswith("socket:"):
            if port := self._port(target):
                self.events.append(Send(port, time.monotonic_ns()))
            return False
        return self._relative(target) is not None

    def left(self, thread: int, call: SystemCall, result: int) -> None:
        """Note what a call did."""
        if result < 0:
            return
        name, arguments = call
        if name in _OPENS:
            self._open(thread, call, result)
        elif name in {"sync", "syncfs"}:
            self.events.append(SyncAll(self._begun[thread]))
        elif name in _ON_NAMES:
            self._change_names(name, arguments, self._paths.pop(thread))
        elif name in _ON_FILES:
            self._change_file(thread, call, result)
        else:
            raise NotRecordedError(f"{name} on {_link(thread, arguments[0])}")

    def _open(self, thread: int, call: SystemCall, descriptor: int) -> None:
        path = self._relative(_link(thread, descriptor))
        place = f"/proc/{thread}/fd/{descriptor}"
        if path is None or not Path(place).is_file():
            return
        file = self._names.get(path)
        if file is None:
            file = self._names[path] = self._files[_identity(place)] = len(self.events)
            self.events.append(Create(path, file))
        elif _truncates(call):
            self.events.append(Truncate(file, 0))

    def _change_file(self, thread: int, call: SystemCall, result: int) -> None:
        name, arguments = call
        descriptor = arguments[0]
        place = f"/proc/{thread}/fd/{descriptor}"
        if Path(place).is_dir():
            path = self._relative(str(Path(place).readlink()))
            self.events.append(SyncFolder(path or "", self._begun[thread]))
            return
        file = self._files[_identity(place)]
        if name in _SYNCS:
            self.events.append(Sync(file, self._begun[thread]))
        elif name == "ftruncate":
            self.events.append(Truncate(file, arguments[1]))
        elif name in _WRITES:
            end = arguments[3] + result if name.startswith("p") else _position(thread, descriptor)
            if name in _VECTORS:
                data = read_parts(thread, arguments[1], arguments[2], result)
            else:
                data = read_memory(thread, arguments[1], result)
            self.events.append(Write(file, end - result, data))
        else:
            raise NotRecordedError(name)

    def _change_names(self, name: str, arguments: tuple[int, ...], paths: list[str | None]) -> None:
        path, target = paths[0], paths[-1]
        if path is None or target is None:
            raise NotRecordedError(f"{name} into or out of the folder")
        if name.startswith("mkdir"):
            self.events.append(MakeFolder(path))
        elif name == "rmdir" or (name == "unlinkat" and arguments[2] & _REMOVES_FOLDER):
            self.events.append(RemoveFolder(path))
        elif name.startswith("unlink"):
            del self._names[path]
            self.events.append(Unlink(path))
        elif name.startswith("rename") and not (name == "renameat2" and arguments[4] & _EXCHANGES):
            self._names[target] = self._names.pop(path)
            self.events.append(Rename(path, target))
        else:
            raise NotRecordedError(f"{name} {path}")

    def _relative(self, path: str) -> str | None:
        """Return the path below the folder, "" for itself; None if it is elsewhere or skipped."""
        if path == self._root:
            return ""
        if not path.startswith(self._root + "/") or path.endswith(SKIPPED_ENDINGS):
            return None
        return path[len(self._root) + 1 :]

    def _port(self, socket: str) -> int:
        """Return the port of the client of a TCP connection, 0: it is another socket."""
        if socket not in self._ports:
            self._ports[socket] = _remote_port(socket.removeprefix("socket:[").removesuffix("]"))
        return self._ports[socket]


def _absolute(thread: int, arguments: tuple[int, ...], folder: int | None, path: int) -> str:
    found = read_path(thread, arguments[path])
    if found.startswith("/"):
        return os.path.normpath(found)
    descriptor = _HERE if folder is None else _signed(arguments[folder])
    where = f"/proc/{thread}/cwd" if descriptor == _HERE else f"/proc/{thread}/fd/{descriptor}"
    return os.path.normpath(Path(where).readlink() / found)


def _signed(number: int) -> int:
    return (number & 0xFFFFFFFF) - (number << 1 & 0x100000000)


def _link(thread: int, descriptor: int) -> str:
    try:
        return str(Path(f"/proc/{thread}/fd/{descriptor}").readlink()).removesuffix(" (deleted)")
    except OSError:
        return ""


def _identity(path: str) -> tuple[int, int]:
    found = Path(path).stat()
    return found.st_dev, found.st_ino


def _position(thread: int, descriptor: int) -> int:
    text = Path(f"/proc/{thread}/fdinfo/{descriptor}").read_text()
    return int(text.partition("pos:")[2].split()[0])


def _truncates(call: SystemCall) -> bool:
    name, arguments = call
    if name == "openat2":
        raise NotRecordedError(name)
    return name == "creat" or bool(arguments[1 if name == "open" else 2] & os.O_TRUNC)


def _remote_port(inode: str) -> int:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] == inode:
                return int(fields[2].rpartition(":")[2], 16)
    return 0


def main() -> int:
    """Run the command and write the recording, also if the recorder itself fails."""
    folder, output, *command = sys.argv[1:]
    recorder = Recorder(Path(folder).resolve())
    try:
        return run_traced(command, recorder, Path(output).with_name(TO_KILL))
    finally:
        with suppress(BrokenPipeError):
            save(recorder.events, Path(output))


if __name__ == "__main__":
    sys.exit(main())
