"""Traces processes with ptrace: stops each at the system calls that are named, and reads of it.

Linux only, for x86-64 and 64-bit ARM. The calls are chosen by a seccomp filter, so all others run
at their own speed. The alternatives, strace and FUSE, are programs that a machine may not have; a
wrapper of Python's `os` would not see what SQLite writes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

NUMBERS: Final[Mapping[str, Mapping[str, int]]] = {
    "x86_64": {
        "open": 2, "creat": 85, "openat": 257, "openat2": 437,
        "write": 1, "pwrite64": 18, "writev": 20, "pwritev": 296, "pwritev2": 328,
        "sendfile": 40, "splice": 275, "copy_file_range": 326,
        "sendto": 44, "sendmsg": 46, "sendmmsg": 307,
        "truncate": 76, "ftruncate": 77, "fallocate": 285,
        "rename": 82, "renameat": 264, "renameat2": 316,
        "link": 86, "linkat": 265, "symlink": 88, "symlinkat": 266,
        "unlink": 87, "unlinkat": 263, "mkdir": 83, "mkdirat": 258, "rmdir": 84,
        "fsync": 74, "fdatasync": 75, "sync": 162, "syncfs": 306,
    },
    "aarch64": {
        "openat": 56, "openat2": 437,
        "write": 64, "pwrite64": 68, "writev": 66, "pwritev": 70, "pwritev2": 287,
        "sendfile": 71, "splice": 76, "copy_file_range": 285,
        "sendto": 206, "sendmsg": 211, "sendmmsg": 269,
        "truncate": 45, "ftruncate": 46, "fallocate": 47,
        "renameat": 38, "renameat2": 276, "linkat": 37, "symlinkat": 36,
        "unlinkat": 35, "mkdirat": 34,
        "fsync": 82, "fdatasync": 83, "sync": 81, "syncfs": 267,
    },
}  # fmt: skip
"""System calls by the name of the machine: those that change files, or write to sockets."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long
_CONT, _SYSCALL, _SEIZE, _LISTEN, _GET_SYSCALL_INFO = 7, 24, 0x4206, 0x4208, 0x420E
_EVENT_SECCOMP, _EVENT_STOP = 7, 128
# TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC, TRACESECCOMP, EXITKILL
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_STOPS: Final = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_WALL: Final = 0x40000000
_ENTRY = struct.Struct("=24x7Q")
_EXIT = struct.Struct("=24xq")
_IOVEC = struct.Struct("=QQ")
_PATH_BYTES: Final = 4096


class SystemCall(NamedTuple):
    """A call that a thread has begun: its name and its six arguments."""

    name: str
    arguments: tuple[int, ...]


class Observer(ABC):
    """Receives the system calls of all threads, one after the other, while each is stopped."""

    @abstractmethod
    def entered(self, thread: int, call: SystemCall) -> bool:
        """Take a call that begins; return whether `left` is to be called with its result."""

    @abstractmethod
    def left(self, thread: int, call: SystemCall, result: int) -> None:
        """Take the result of a call; it is below 0 if the call failed."""


def run_traced(command: Sequence[str], observer: Observer, to_kill: Path) -> int:
    """Run a command with all processes that it starts; return its status when all have ended.

    SIGTERM and SIGINT are passed on to it. After SIGUSR1 the process is killed whose id is in the
    file `to_kill`, as soon as none of its threads is in a call: what became of it is known then.
    """
    numbers = NUMBERS[platform.machine()]
    names = {number: name for name, number in numbers.items()}
    child = os.fork()
    if not child:
        _become(command, sorted(names))
    os.waitpid(child, os.WUNTRACED)
    _ptrace(_SEIZE, child, 0, _OPTIONS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os.kill(child, number))
    tracer = _Tracer(names, observer, child)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: tracer.kill(int(to_kill.read_text())))
    os.kill(child, signal.SIGCONT)
    return tracer.run()


def _become(command: Sequence[str], numbers: Sequence[int]) -> None:
    """Wait to be traced, have the calls stopped from now on, and run the command."""
    os.kill(os.getpid(), signal.SIGSTOP)
    _install_filter(numbers)
    try:
        os.execvp(command[0], list(command))
    finally:
        os._exit(127)


def _install_filter(numbers: Sequence[int]) -> None:
    """Have the kernel stop this process, and its children, at system calls of these numbers."""
    load, equal, answer = 0x20, 0x15, 0x06
    trace, allow = 0x7FF00000, 0x7FFF0000
    steps = [(load, 0, 0, 0)]
    steps += [(equal, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    steps += [(answer, 0, 0, allow), (answer, 0, 0, trace)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *s) for s in steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    no_new_privileges, set_seccomp, filtered = 38, 22, 2
    if _LIBC.prctl(no_new_privileges, 1, 0, 0, 0) or _LIBC.prctl(set_seccomp, filtered, header):
        raise OSError(ctypes.get_errno(), "seccomp")


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> int:
    done: int = _LIBC.ptrace(request, thread, address, data)
    if done < 0:
        number = ctypes.get_errno()
        # A thread that was killed is gone before its end is known here.
        if number != errno.ESRCH:
            raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")
    return done


class _Tracer:
    """Runs the threads from stop to stop until none is left."""

    def __init__(self, names: Mapping[int, str], observer: Observer, child: int) -> None:
        self._names = names
        self._observer = observer
        self._child = child
        self._calls: dict[int, SystemCall] = {}
        self._info = ctypes.create_string_buffer(96)
        self._to_kill = 0

    def kill(self, process: int) -> None:
        """Have a process killed between two calls."""
        self._to_kill = process

    def run(self) -> int:
        """Return the status of the first process."""
        ended = 0
        while True:
            try:
                thread, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                return ended
            if os.WIFSTOPPED(status):
                self._resume(thread, os.WSTOPSIG(status), status >> 16)
                if self._to_kill and not any(map(self._is_to_kill, self._calls)):
                    os.kill(self._to_kill, signal.SIGKILL)
                    self._to_kill = 0
                continue
            self._calls.pop(thread, None)
            if thread == self._child:
                ended = os.waitstatus_to_exitcode(status)

    def _resume(self, thread: int, number: int, event: int) -> None:
        if event == _EVENT_SECCOMP:
            _ptrace(_SYSCALL if self._enter(thread) else _CONT, thread)
        elif number == _SYSCALL_STOP:
            self._leave(thread)
            _ptrace(_CONT, thread)
        elif event == _EVENT_STOP and number in _STOPS:
            _ptrace(_LISTEN, thread)
        else:
            _ptrace(_CONT, thread, 0, 0 if event else number)

    def _is_to_kill(self, thread: int) -> bool:
        return Path(f"/proc/{self._to_kill}/task/{thread}").exists()

    def _enter(self, thread: int) -> bool:
        if not self._read_info(thread):
            return False
        number, *arguments = _ENTRY.unpack_from(self._info)
        call = SystemCall(self._names[number], tuple(arguments))
        try:
            if not self._observer.entered(thread, call):
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False  # killed before the call
        self._calls[thread] = call
        return True

    def _leave(self, thread: int) -> None:
        call = self._calls.pop(thread, None)
        if call is not None and self._read_info(thread):
            self._observer.left(thread, call, _EXIT.unpack_from(self._info)[0])

    def _read_info(self, thread: int) -> bool:
        size = ctypes.sizeof(self._info)
        return _ptrace(_GET_SYSCALL_INFO, thread, size, ctypes.addressof(self._info)) > 0


def read_memory(thread: int, address: int, size: int) -> bytes:
    """Return bytes of the memory of a stopped thread."""
    if not size:
        return b""
    memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(memory, size, address)
    finally:
        os.close(memory)


def read_path(thread: int, address: int) -> str:
    """Return the text that ends with a zero byte at an address."""
    # A page at a time: the next one may not be there.
    found = b""
    while b"\0" not in found and len(found) < _PATH_BYTES:
        at = address + len(found)
        found += read_memory(thread, at, _PATH_BYTES - at % _PATH_BYTES)
    return os.fsdecode(found.partition(b"\0")[0])


def read_parts(thread: int, address: int, count: int, size: int) -> bytes:
    """Return the first bytes of the parts that an array of `count` iovec structures names."""
    found = b""
    for start, length in _IOVEC.iter_unpack(read_memory(thread, address, count * _IOVEC.size)):
        found += read_memory(thread, start, min(length, size - len(found)))
    return found
