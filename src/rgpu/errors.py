"""Every exception rgpu raises by itself, on one page.

CuPy's own exception classes (``OutOfMemoryError``, ``CUDARuntimeError``, ...) live where CuPy
has them, in ``rgpu.cuda``; what is here is about servers, sessions and the wire. Imports nothing.
"""

from __future__ import annotations


class RgpuError(RuntimeError):
    """Base of every error that rgpu itself raises. ``reason`` is one word for programs; the message is for people."""

    reason = "failed"


class ConfigError(RgpuError, ValueError):
    """A setting (environment, rgpu.toml, argument) has no meaning; the message names it."""


class ProtocolError(RgpuError):
    """A peer sent bytes that are not a valid message. Costs that peer its session, nobody else."""


class VersionMismatch(ProtocolError):
    """Client and server speak different protocols; the message names both versions."""

    reason = "version"


class ServerUnavailable(RgpuError, ConnectionError):
    """A server could not be reached; the message says how it failed and what to check.

    ``reason``: "name" (not resolved), "refused", "no-answer", "unreachable", "closed" or "failed".
    """

    def __init__(self, message: str, reason: str = "failed") -> None:
        super().__init__(message)
        self.reason = reason


class RegistryUnavailable(ServerUnavailable):
    """The registry that should name the servers cannot be used, or knows none (``reason`` "empty")."""


class AuthenticationError(RgpuError, PermissionError):
    """The server does not accept our key, or we not its; the message says which, and what to do."""

    reason = "denied"


class ServerBusy(RgpuError):
    """The server has no room for another session right now."""

    reason = "full"


class QuotaExceeded(ServerBusy):
    """The user may not hold more, by quota or token; waiting helps only when the user gives something back."""


class ServerDraining(ServerBusy):
    """The server grants no new leases."""


class LeaseEnded(RgpuError):
    """The lease that was named is over; the message says why."""


class NoSuchDevice(RgpuError, ValueError):
    """A device number that the server does not have."""

    reason = "no-device"


class NoSuchSession(RgpuError, ValueError):
    """A session that the server does not know, or that belongs to somebody else."""


class SessionLost(RgpuError, ConnectionError):
    """A session ended that the client still needed. Its arrays are gone."""


class WorkerLost(SessionLost):
    """The worker process of this session died; the server itself lives."""


class ServerLost(SessionLost):
    """The server host no longer answers."""


class SessionExpired(SessionLost):
    """The client was silent for longer than the grace time and the server gave the device back."""


class OutcomeUnknown(SessionLost):
    """Commands were sent whose execution nobody can confirm; they are not retried. The cause (``__cause__``) of the
    error that says how the session was lost; ``commands`` has the program's line of each one that is known."""

    commands: tuple[str, ...] = ()


class PeerLost(RgpuError, ConnectionError):
    """A worker lost the connection to another worker in the middle of a copy or a collective. Both
    sessions go on (unless one of the workers is gone); what should have been copied is not there."""


class CheckpointError(RgpuError, ValueError):
    """A file that is no checkpoint, is damaged, or cannot hold what it should; the message says which."""


class Divergence(RgpuError):
    """The two workers of a redundant device gave different results, so that nobody knows which is right. The message
    has the device, the program's line and both digests; the result was not delivered."""


class ForkError(RgpuError):
    """A forked child used its parent's session. Use the ``spawn`` start method, or import in the child."""


class PredictionError(RgpuError):
    """RGPU_CHECK_PREDICTION=1 found a result that differs from what the client predicted."""


class RemoteError(RgpuError):
    """A server-side exception whose class the client does not know; the traceback is a note."""


class PerformanceWarning(RuntimeWarning):
    """Something works but costs more than it looks: an array had to be copied between devices."""
