"""The worker's table: what each handle of the session stands for.

An entry is an array, an object of a declared class, or the error that kept it from existing
(poison). The table counts the bytes of the arrays it owns and refuses those beyond the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rgpu import _native
from rgpu.errors import ProtocolError
from rgpu.wire import limits
from rgpu.wire.values import decode_dtype


class OutOfMemoryError(MemoryError):
    """(size, total, limit) as CuPy's exception of this name has them, in bytes."""


class Poison(Exception):
    """Stands where a result should be, and is raised by touching it: what the original error was
    (class name, arguments, traceback as text) and which command made it. Keeps no frames alive."""

    def __init__(self, where: tuple[int, int], kind: str, args: list, text: str) -> None:
        super().__init__(kind)
        self.where, self.kind, self.arguments, self.text = where, kind, args, text


UNIT = 512  # bytes: CuPy's pools give memory in such units, and say so


def charged(nbytes: int) -> int:
    """What an array counts for."""
    return -(-nbytes // UNIT) * UNIT


class PureAccount:
    """What a memory pool of the session holds, and may hold (0: anything). ``total``: the most that it held, which
    the process keeps for its next use."""

    __slots__ = ("used", "limit", "total")

    def __init__(self, limit: int = 0) -> None:
        self.used, self.limit, self.total = 0, limit, 0


class PureHandles:
    """handle -> object. ``used`` is the number of bytes owned by live arrays; each counts in the
    account that was current when it was entered."""

    def __init__(self, limit: int = 0) -> None:
        self.entries: dict[int, Any] = {}
        self._owned: dict[int, int] = {}
        self._roots: dict[int, int] = {}  # view -> the array whose memory it shares
        self._views: dict[int, int] = {}  # how many share an array's memory: it counts as long as they live
        self.used = 0
        self.limit = limit
        self.account = self.default = PureAccount()
        self._accounts: dict[int, PureAccount] = {}  # of the arrays in other accounts than the default one

    def __len__(self) -> int:
        return len(self.entries)

    def get(self, handle: Any) -> Any:
        """The object of a handle; raises its poison, or ProtocolError if there is none."""
        try:
            entry = self.entries[handle]
        except (KeyError, TypeError):
            raise ProtocolError(f"unknown handle {str(handle)[:30]}") from None
        if type(entry) is Poison:
            raise entry.with_traceback(None)
        return entry

    def peek(self, handle: Any) -> Any:
        """The same, poison as it is; None where there is nothing."""
        return self.entries.get(handle)

    def admit(self, nbytes: int) -> None:
        """Refuse an array that would take the session beyond its limit (0: none)."""
        if self.limit and self.used + nbytes > self.limit:
            self.draw(nbytes)
        account = self.account
        if account.limit and account.used + nbytes > account.limit:
            raise OutOfMemoryError(nbytes, account.used, account.limit)

    def put(self, handle: int, entry: Any, nbytes: int = 0) -> None:
        """Bind a new handle; a client that uses one twice breaks the protocol."""
        entries = self.entries
        if handle in entries or (handle in self._views and type(entry) is not Poison):
            raise ProtocolError(f"handle {handle} is in use")
        if len(entries) >= limits.TABLE:
            raise ProtocolError(f"more than {limits.TABLE} live handles")
        if nbytes:
            nbytes, account = (nbytes + UNIT - 1) & -UNIT, self.account
            if (self.limit and self.used + nbytes > self.limit) or account.limit:
                self.admit(nbytes)
            self._owned[handle] = nbytes
            self.used += nbytes
            account.used += nbytes
            if account.used > account.total:
                account.total = account.used
            if account is not self.default:
                self._accounts[handle] = account
        entries[handle] = entry

    def put_view(self, handle: int, entry: Any, root: int) -> None:
        """Bind an array over the memory of another, which must own it."""
        self.put(handle, entry)
        self._roots[handle] = root
        self._views[root] = self._views.get(root, 0) + 1

    def root(self, handle: int) -> int:
        """The handle of the array whose memory it shares; 0: its own."""
        return self._roots.get(handle, 0)

    def sharing(self, root: int) -> list[int]:
        """Handles over the memory of a root, itself among them."""
        return [*({root} & self.entries.keys()), *[view for view, owner in self._roots.items() if owner == root]]

    def free(self, handle: int) -> None:
        """Forget a handle; unknown ones are ignored, freeing never fails. While views share its memory that counts on,
        or whoever frees an array and keeps a view of it would hold more than the limit."""
        self.entries.pop(handle, None)
        if handle in self._views:
            return
        root = self._roots.pop(handle, 0)  # what owns memory is no view
        if not root:
            self._discharge(handle)
            return
        left = self._views[root] - 1
        if left:
            self._views[root] = left
            return
        del self._views[root]
        if root not in self.entries or type(dict.get(self.entries, root)) is Poison:
            self._discharge(root)

    def release(self, handles: list[int]) -> None:
        """Free them all."""
        if self._views or self._accounts:
            for handle in handles:
                self.free(handle)
            return
        forget, disown, nbytes = self.entries.pop, self._owned.pop, 0
        for handle in handles:
            forget(handle, None)
            nbytes += disown(handle, 0)
        self.used -= nbytes
        self.default.used -= nbytes

    def _discharge(self, handle: int) -> None:
        """Its memory is free: it counts no more."""
        nbytes = self._owned.pop(handle, 0)
        if nbytes:
            self.used -= nbytes
            account = self._accounts.pop(handle, self.default) if self._accounts else self.default
            account.used -= nbytes


class _Common:
    """What both tables do about memory that has to be asked for, and with errors."""

    allowance: Any = None  # where more is asked for; None: the limit is the limit

    def entitle(self, allowance: Any) -> None:
        """Hold what the allowance says, and ask it for more."""
        self.allowance, allowance.account = allowance, self
        self.limit = max(1, allowance.memory)

    @property
    def resident(self) -> int:
        """Bytes in device memory: all of them."""
        return self.used

    def draw(self, nbytes: int) -> None:
        """Ask for more than the session may hold now."""
        allowance, limit = self.allowance, self.limit
        if allowance is not None:
            if self.used + nbytes <= allowance.limit:
                allowance.more(self.used + nbytes)
            self.limit = max(1, allowance.memory)
            limit = min(allowance.limit, allowance.memory + allowance.free)
        if self.used + nbytes > self.limit:
            raise OutOfMemoryError(nbytes, self.used, limit)

    def owner(self, handle: int) -> Any:
        """The array of a handle that may be a view's root: one that is no view itself."""
        if self.root(handle):
            raise ProtocolError(f"handle {handle} is a view; views are made of what owns the memory")
        return self.get(handle)

    def poison(self, handle: int, error: Poison) -> None:
        """Whatever the handle was, from now on it raises."""
        self.free(handle)
        self.put(handle, error)

    def poison_memory(self, handle: int, error: Poison) -> None:
        """The content of an array is lost: it, its root and every view of that raise."""
        for other in self.sharing(self.root(handle) or handle):
            self.poison(other, error)


class PureTable(_Common, PureHandles):
    """The table in Python."""


if TYPE_CHECKING or _native.execute is None:
    Account = PureAccount
    Table = PureTable
else:
    Account = _native.execute.Account
    _native.execute.configure(ProtocolError, OutOfMemoryError, Poison, decode_dtype)

    class Table(_Common, _native.execute.Table):
        """The C core's, which its loop over commands works on (csrc/execute_loop.c)."""


def plain_error(error: BaseException) -> tuple[str, list]:
    """Class name and plain arguments of what a client is told."""
    kind, given = type(error), error.args[:16]
    if kind.__module__.endswith("._exceptions"):  # NumPy's private ones, whose arguments are not their message
        kind, given = next(c for c in kind.__mro__ if c.__module__ == "builtins"), (str(error),)
    args = [x if isinstance(x, bool | int | float | None) else encodable(str(x))[:4096] for x in given]
    args = [x if not isinstance(x, int) or abs(x) < 2**63 else str(x) for x in args]
    status = getattr(error, "status", None)
    if isinstance(status, int) and type(error).__name__.endswith("Error"):
        args = [status]
    return encodable(kind.__name__)[: limits.TEXT], args


def encodable(text: str) -> str:
    """Without lone surrogates, which no wire takes."""
    return text.encode("utf-8", "backslashreplace").decode()
