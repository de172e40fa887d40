"""Iterative solvers. A matrix goes to the worker, which runs the whole iteration; Python in it makes them run here.

With an operator of callables, or a callback, each step is array operations and one read of the residual's norm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rgpu.client.remote import Remote
from rgpu.cupyx.scipy.sparse import _call
from rgpu.cupyx.scipy.sparse._base import _spbase
from rgpu.cupyx.scipy.sparse._operators import LinearOperator, _Matrix, aslinearoperator
from rgpu.functions import creation, dispatch


def _norm(x: Any) -> float:
    return float(dispatch.call("linalg.norm", x))


def _inner(x: Any, y: Any) -> Any:
    return dispatch.call("vdot", x, y)


class _System:
    """A x = b, checked: ValueError for shapes that do not fit, TypeError for dtypes that no solver takes."""

    def __init__(self, A: Any, b: Any, x0: Any, M: Any) -> None:  # noqa: N803 - CuPy's names
        if not isinstance(A, LinearOperator) and len(getattr(A, "shape", ())) != 2:
            raise ValueError("expected a square matrix")
        self.A, self.M = aslinearoperator(A), None if M is None else aslinearoperator(M)
        n = self.A.shape[0]
        if self.A.shape[0] != self.A.shape[1]:
            raise ValueError(f"expected square matrix (shape: {self.A.shape})")
        if self.A.dtype.char not in "fdFD":
            raise TypeError(f"unsupported dtype (actual: {self.A.dtype})")
        if b.shape not in ((n,), (n, 1)):
            raise ValueError("b has incompatible dimensions")
        if self.M is not None and self.M.shape != self.A.shape:
            raise ValueError("matrix and preconditioner have different shapes")
        if x0 is not None and x0.shape not in ((n,), (n, 1)):
            raise ValueError("x0 has incompatible dimensions")
        self.n, self.b = n, b.ravel().astype(self.A.dtype, copy=False)
        self.x = creation.zeros(n, self.A.dtype) if x0 is None else x0.ravel().astype(self.A.dtype)

    def whole(self) -> tuple[Any, Any] | None:
        """The matrices, if there are only such: then the worker can do it."""
        parts = [x.A if isinstance(x, _Matrix) else x for x in (self.A, self.M) if x is not None]
        if not all(isinstance(x, Remote | _spbase) for x in parts):
            return None
        return parts[0], parts[1] if self.M is not None else None

    def conditioned(self, r: Any) -> Any:
        return r if self.M is None else self.M.matvec(r)


def _cg(s: _System, limit: float, maxiter: int, callback: Callable[[Any], None]) -> bool:
    x, r = s.x, s.b - s.A.matvec(s.x)
    p, rho = None, None
    for _ in range(maxiter):
        if _norm(r) <= limit:
            break
        z = s.conditioned(r)
        rho, before = _inner(r, z), rho
        p = z if p is None else z + (rho / before) * p
        q = s.A.matvec(p)
        alpha = rho / _inner(p, q)
        x, r = x + alpha * p, r - alpha * q
        callback(x)
    s.x = x
    return _norm(r) <= limit


def _bicgstab(s: _System, limit: float, maxiter: int, callback: Callable[[Any], None]) -> bool:
    x, r = s.x, s.b - s.A.matvec(s.x)
    shadow, p, v = r.copy(), None, None
    rho = alpha = omega = 1
    for _ in range(maxiter):
        if _norm(r) <= limit:
            break
        rho, before = _inner(shadow, r), rho
        p = r if p is None else r + (rho / before) * (alpha / omega) * (p - omega * v)
        y = s.conditioned(p)
        v = s.A.matvec(y)
        alpha = rho / _inner(shadow, v)
        half = r - alpha * v
        z = s.conditioned(half)
        t = s.A.matvec(z)
        omega = _inner(t, half) / _inner(t, t)
        x, r = x + alpha * y + omega * z, half - omega * t
        callback(x)
    s.x = x
    return _norm(r) <= limit


def _cgs(s: _System, limit: float, maxiter: int, callback: Callable[[Any], None]) -> bool:
    x, r = s.x, s.b - s.A.matvec(s.x)
    shadow, p, q, rho = r.copy(), None, None, None
    for _ in range(maxiter):
        if _norm(r) <= limit:
            break
        rho, before = _inner(shadow, r), rho
        if p is None:
            u = p = r
        else:
            beta = rho / before
            u = r + beta * q
            p = u + beta * (q + beta * p)
        v = s.A.matvec(s.conditioned(p))
        alpha = rho / _inner(shadow, v)
        q = u - alpha * v
        step = s.conditioned(u + q)
        x, r = x + alpha * step, r - alpha * s.A.matvec(step)
        callback(x)
    s.x = x
    return _norm(r) <= limit


_LOOPS = {"cg": _cg, "bicgstab": _bicgstab, "cgs": _cgs}


def solver(name: str) -> Callable[..., Any]:
    """``cg``, ``cgs`` or ``bicgstab``: (solution, 0 or the number of iterations that were not enough)."""

    def solve(
        A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: Any = 0.0, maxiter: Any = None, M: Any = None,  # noqa: N803
        callback: Any = None,
    ) -> Any:  # fmt: skip
        system = _System(A, b, x0, M)
        whole, atol = system.whole(), 0.0 if atol is None else float(atol)
        if not system.n:
            return creation.empty_like(system.b), 0
        if whole is not None and callback is None:
            options = {} if maxiter is None else {"maxiter": int(maxiter)}
            start = None if x0 is None else system.x
            return _call.ask(f"linalg.{name}", whole[0], system.b, start, rtol=rtol, atol=atol, M=whole[1], **options)
        limit, steps = max(atol, rtol * _norm(system.b)), maxiter or 10 * system.n
        done = _LOOPS[name](system, limit, steps, callback or (lambda x: None))
        return system.x, 0 if done else steps

    solve.__name__ = solve.__qualname__ = name
    solve.__module__ = "cupyx.scipy.sparse.linalg"
    return solve


def gmres(
    A: Any, b: Any, x0: Any = None, *, rtol: float = 1e-5, atol: Any = 0.0, restart: Any = None,  # noqa: N803
    maxiter: Any = None, M: Any = None, callback: Any = None, callback_type: Any = None,
) -> Any:  # fmt: skip
    """Generalized minimal residuals: (solution, 0 or the number of iterations that were not enough)."""
    if callback_type not in (None, "x", "pr_norm"):
        raise ValueError(f"Unknown callback_type: {callback_type}")
    system = _System(A, b, x0, M)
    whole, atol = system.whole(), 0.0 if atol is None else float(atol)
    if not system.n:
        return creation.empty_like(system.b), 0
    if whole is not None and callback is None:
        options = {name: int(x) for name, x in (("restart", restart), ("maxiter", maxiter)) if x is not None}
        start = None if x0 is None else system.x
        return _call.ask("linalg.gmres", whole[0], system.b, start, rtol=rtol, atol=atol, M=whole[1], **options)
    norm = _norm(system.b)
    limit, restart = max(atol, rtol * norm), min(restart or 20, system.n)
    maxiter, done = maxiter or 10 * system.n, 0
    while True:
        r = system.b - system.A.matvec(system.x)
        size = _norm(r)
        if callback is not None:
            callback(system.x if callback_type == "x" else size / (norm or 1.0))
        if size <= limit or done >= maxiter:
            return system.x, 0 if size <= limit else done
        system.x = _cycle(system, r, size, restart)
        done += restart


def _cycle(s: _System, r: Any, size: float, restart: int) -> Any:
    """One restart: the best solution in a Krylov space of so many dimensions."""
    basis, images = [r / size], []
    for _ in range(restart):
        direction = s.conditioned(basis[-1])
        w = s.A.matvec(direction)
        images.append((direction, w))
        for v in basis:
            w = w - _inner(v, w) * v
        length = _norm(w)
        if length <= 1e-14 * size:
            break
        basis.append(w / length)
    products = dispatch.call("stack", [w for _, w in images], axis=1)
    weights = dispatch.call("linalg.lstsq", products, r, None)[0]
    return s.x + dispatch.call("stack", [direction for direction, _ in images], axis=1) @ weights


def minres(
    A: Any, b: Any, x0: Any = None, shift: float = 0.0, tol: float = 1e-5, maxiter: Any = None, M: Any = None,  # noqa: N803
    callback: Any = None, check: bool = False,
) -> Any:  # fmt: skip
    """Minimal residuals for a symmetric or Hermitian A: (solution, 0 or the iterations that were not enough)."""
    system = _System(A, b, x0, M)
    whole = system.whole()
    if not system.n:
        return creation.empty_like(system.b), 0
    if whole is not None and callback is None:
        options = {"shift": shift, "tol": tol, "check": check}
        options |= {} if maxiter is None else {"maxiter": int(maxiter)}
        start = None if x0 is None else system.x
        return _call.ask("linalg.minres", whole[0], system.b, start, M=whole[1], **options)
    steps = maxiter or 5 * system.n
    done = _lanczos(system, shift, tol * _norm(system.b), steps, callback or (lambda x: None))
    return system.x, 0 if done else steps


def _lanczos(s: _System, shift: float, limit: float, maxiter: int, callback: Callable[[Any], None]) -> bool:
    """Elman, Silvester and Wathen, Finite Elements and Fast Iterative Solvers (2005), algorithm 2.4."""
    x, older = s.x, creation.zeros_like(s.b)
    v = s.b - s.A.matvec(x) + shift * x
    z = s.conditioned(v)
    gamma, eta = [1.0, _root(v, z)], _root(v, z)  # of the last step and of this one; the residual's size
    cosine, sine = [1.0, 1.0], [0.0, 0.0]  # of the last two rotations, as the directions
    directions = [older, older]
    for _ in range(maxiter):
        if abs(eta) <= limit or not gamma[1]:
            break
        z = z / gamma[1]
        product = s.A.matvec(z) - shift * z
        delta = float(_inner(z, product).real)
        v, older = product - (delta / gamma[1]) * v - (gamma[1] / gamma[0]) * older, v
        following = s.conditioned(v)
        after = _root(v, following)
        rest = cosine[1] * delta - cosine[0] * sine[1] * gamma[1]
        near = sine[1] * delta + cosine[0] * cosine[1] * gamma[1]
        length = (rest * rest + after * after) ** 0.5
        if not length:
            break
        step = (z - sine[0] * gamma[1] * directions[0] - near * directions[1]) / length
        cosine, sine = [cosine[1], rest / length], [sine[1], after / length]
        x, eta = x + cosine[1] * eta * step, -sine[1] * eta
        directions, gamma, z = [directions[1], step], [gamma[1], after], following
        callback(x)
    s.x = x
    return abs(eta) <= limit


def _root(v: Any, z: Any) -> float:
    return max(float(_inner(v, z).real), 0.0) ** 0.5
