"""Run a Python program as if on another system: ``other_system.py darwin|win32 -c CODE | -m MODULE ... | FILE ...``

What Python has on Linux alone is taken away before rgpu is imported, and on Windows what only POSIX has, too. It shows
what a client needs, not how another kernel behaves.
"""

# Some are there for the programs of the tests: what they need is imported while everything is still there.
import asyncio  # noqa: F401
import http.server  # noqa: F401
import importlib.abc
import multiprocessing.shared_memory  # noqa: F401
import os
import runpy
import select
import selectors
import signal
import socket
import stat
import sys
import tempfile  # noqa: F401

import numpy.testing  # noqa: F401
import zmq  # noqa: F401

LINUX = {
    os: "memfd_create eventfd sched_getaffinity sched_setaffinity pidfd_open pipe2 posix_fallocate preadv pwritev "
    "splice copy_file_range O_TMPFILE O_PATH",
    select: "epoll",
    selectors: "EpollSelector",
    socket: "MSG_NOSIGNAL SO_PEERCRED TCP_USER_TIMEOUT TCP_QUICKACK TCP_KEEPIDLE SOCK_CLOEXEC SOCK_NONBLOCK",
}
POSIX = {
    os: "fork forkpty getuid geteuid getgid getegid getgroups setuid setgid killpg getpgid getpgrp setsid setpgid "
    "getsid register_at_fork sched_yield O_NOFOLLOW O_CLOEXEC O_DIRECTORY O_NONBLOCK fchmod fchown chown uname sysconf "
    "getloadavg mkfifo pread pwrite readv writev sendfile nice posix_spawn openpty get_blocking set_blocking",
    select: "poll",
    selectors: "PollSelector",
    signal: "SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGKILL SIGCHLD SIGQUIT SIGPIPE SIGSTOP SIGCONT SIGTSTP SIGWINCH SIGPROF "
    "SIGVTALRM pthread_kill pthread_sigmask setitimer getitimer alarm pause siginterrupt sigpending sigwait",
    socket: "AF_UNIX SOCK_SEQPACKET MSG_DONTWAIT SCM_RIGHTS CMSG_LEN CMSG_SPACE send_fds recv_fds SO_REUSEPORT",
}
POSIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"}


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in POSIX_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class Socket(socket.socket):
    """As on Windows: bytes go one buffer at a time."""

    __slots__ = ()

    def __getattribute__(self, name):
        if name in ("sendmsg", "recvmsg", "recvmsg_into"):
            raise AttributeError(name)
        return super().__getattribute__(name)


def socketpair():
    with Socket(socket.AF_INET) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        mine = Socket(socket.AF_INET)
        mine.connect(listener.getsockname())
        return mine, listener.accept()[0]


def sockets_only(readers, writers, others, timeout=None, wait=select.select):
    for entry in (*readers, *writers, *others):
        number = entry if isinstance(entry, int) else entry.fileno()
        if not stat.S_ISSOCK(os.fstat(number).st_mode) and not is_libzmqs(number):
            raise OSError(10038, "an operation was attempted on something that is not a socket")
    return wait(readers, writers, others, timeout)


def is_libzmqs(number):
    """Whether a descriptor is the one by which libzmq tells of events: an eventfd here, a socket on Windows. Python
    itself has no ``os.eventfd`` any more."""
    return os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[eventfd]"


def select_once(self, readers, writers, _, timeout=None):
    ready, writable, failed = sockets_only(readers, writers, writers, timeout)
    return ready, writable + failed, []


def take(names):
    for module, listed in names.items():
        for name in listed.split():
            if hasattr(module, name):
                delattr(module, name)


def become(system):
    """This process is on ``system`` from now on."""
    if os.environ.get("RGPU_LINK") in ("shm", "ucx"):  # chosen for a whole run of the tests, and not to be had there
        del os.environ["RGPU_LINK"]
    selectors.DefaultSelector = selectors.PollSelector
    take(LINUX)
    if system == "win32":
        os.environ["RGPU_PURE"] = "1"  # the C core is for POSIX
        selectors.DefaultSelector = selectors.SelectSelector
        take(POSIX)
        socket.socket, socket.socketpair, select.select = Socket, socketpair, sockets_only
        selectors.SelectSelector._select = select_once
        for name in POSIX_MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, Missing())
    sys.platform = system


if __name__ == "__main__":
    _, system, how, *rest = sys.argv
    become(system)
    if how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - the test's own program
    elif how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [how, *rest]
        runpy.run_path(how, run_name="__main__")
