"""How much of the server's disk each person's folders take: counted beside the daemon, and emptied when it is too much.

A quota of the file system would be exact and needs an administrator; counting needs nothing, and is late by a moment.
What is counted has a name: files that were removed while they are open end with the session that has them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections import Counter
from typing import Any

log = logging.getLogger("rgpu.server")

LOOK_SECONDS = 2.0  # between two looks at all folders in use
SMALLEST = 16 << 10  # bytes that a file counts as at least: names and inodes end, too, and looking takes time
GIVE_WAY = 256  # files after which the daemon's thread is let in


class Disk:
    """The folders of the sessions that run, each with ``most`` bytes (0: any number)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: Counter[str] = Counter()  # by how many workers
        self._full: set[str] = set()
        self._left: set[str] = set()  # nobody uses them, and what is in them goes
        self._bell = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def enter(self, *places: str) -> None:
        """A worker uses these folders."""
        self._used.update(place for place in places if place)
        if self._used and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rgpu-disk", daemon=True)
            self._thread.start()

    def leave(self, *places: str, passing: str = "") -> None:
        """It has ended. What is in ``passing`` goes when nobody is left there, and what is in a folder that is full."""
        for place in places:
            self._used[place] -= 1
            if self._used[place] <= 0:
                del self._used[place]
                if place == passing or place in self._full:
                    self._left.add(place)
                    self._bell.set()

    def full(self, *places: str) -> str:
        """Why a session with these folders has to end; empty: it has not."""
        if self._full.isdisjoint(places):
            return ""
        most = self._most >> 20
        return f"this person's files take more than {most} MiB of the server's disk; --disk-per-person allows more"

    def close(self) -> None:
        self._over = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        while not self._over:
            self._bell.wait(LOOK_SECONDS)
            self._bell.clear()
            try:
                self._look()
            except Exception:  # without a look nobody's disk has a bound
                log.exception("people's folders could not be looked at")

    def _look(self) -> None:
        for place in list(self._left):
            self._left.discard(place)
            if place not in self._used:  # else they came back meanwhile: it is full still, and that is told to them
                empty(place)
                self._full.discard(place)
        for place in list(self._used):
            if self._most and place not in self._full and taken(place, self._most) > self._most:
                log.warning("%s holds more than %d bytes: its sessions end, and it is emptied", place, self._most)
                self._full.add(place)


def taken(folder: str, most: int) -> int:
    """Bytes that the files beneath a folder take; counting ends above ``most``. What cannot be looked into counts as
    more."""
    total, seen, waiting = 0, 0, [folder]
    while waiting and total <= most:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += _size(entry)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    seen += 1
                    if seen % GIVE_WAY == 0:
                        threading.Event().wait(0.001)
                    if total > most:
                        break
        except (FileNotFoundError, NotADirectoryError):  # gone since it was seen
            continue
        except OSError:
            return most + 1
    return total


def _size(entry: os.DirEntry[str]) -> int:
    with contextlib.suppress(FileNotFoundError):
        return max(entry.stat(follow_symlinks=False).st_blocks * 512, SMALLEST)
    return 0


def empty(folder: str) -> None:
    """Delete what is in a folder, as far as that is possible."""

    def still_there(_function: Any, path: str, _error: Any) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # one that may not be entered may be empty

    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            with contextlib.suppress(OSError, RecursionError):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, onerror=still_there)
                else:
                    os.unlink(entry.path)
