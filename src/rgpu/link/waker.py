"""A bell that ends the waits of threads inside a select, on any platform.

Knows nothing of links; its owner's lock guards it.
"""

import select
import socket


class Waker:
    """``waiters`` is how many threads listen; the bell rings until the last one has left."""

    def __init__(self) -> None:
        self.waiters = 0
        self._rung = False
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def ring(self) -> None:
        if self.waiters and not self._rung:
            self._rung = True
            self._sender.send(b"!")

    def leave(self) -> None:
        """A waiter is gone."""
        self.waiters -= 1
        if self._rung and not self.waiters:
            self._rung = False
            try:
                self._receiver.recv(16)
            except BlockingIOError:  # on its way, where such a pair is TCP (Windows)
                if select.select([self._receiver], [], [], 1.0)[0]:
                    self._receiver.recv(16)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
