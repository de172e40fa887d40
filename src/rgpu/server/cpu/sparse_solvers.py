"""``cupyx.scipy.sparse.linalg`` where CuPy's functions end otherwise than SciPy's. Matrices are whole here."""

from __future__ import annotations

from typing import Any

import numpy as np

from rgpu.server import sparse
from rgpu.server.objects import Factors


def _start(size: int) -> np.ndarray:
    """Where iterations begin: at random, but two workers of one stream at the same place."""
    return np.random.default_rng(0).standard_normal(size)


def _ritz(a: Any, k: int, which: str, steps: int, v0: Any) -> tuple[np.ndarray, np.ndarray]:
    """The k best approximations, values (ascending) and vectors, in the Krylov space of so many products."""
    v = _start(a.shape[0]) if v0 is None else v0
    basis = np.empty((a.shape[0], min(steps, a.shape[0])), a.dtype)
    for i in range(basis.shape[1]):
        done = basis[:, :i]
        for _ in range(2):  # orthogonal to rounding errors
            v = v - done @ (done.conj().T @ v)
        size = np.linalg.norm(v)
        if i and size < np.finfo(a.dtype).eps:
            basis = done
            break
        basis[:, i] = v / size
        v = a @ basis[:, i]
    values, vectors = np.linalg.eigh(basis.conj().T @ (a @ basis))
    order = np.argsort({"LM": abs(values), "LA": values, "SA": -values}[which])[-k:]
    order = order[np.argsort(values[order])]
    return values[order], basis @ vectors[:, order]


def eigsh(package: Any, a: Any, k: int = 6, *, which: str = "LM", return_eigenvectors: bool = True, **kw: Any) -> Any:
    """As SciPy's; where the iterations do not suffice the best that a space as large as theirs has, as CuPy's."""
    from scipy.sparse import linalg

    try:
        if kw.get("maxiter", 1) <= 0:
            raise linalg.ArpackNoConvergence("no iterations", np.empty(0), np.empty((0, 0)))
        if kw.get("v0") is None:
            kw["v0"] = _start(a.shape[0])
        return linalg.eigsh(a, k, which=which, return_eigenvectors=return_eigenvectors, **kw)
    except linalg.ArpackNoConvergence:
        steps = (kw.get("ncv") or max(2 * k, k + 32)) * (1 + max(kw.get("maxiter") or 0, 0))
        values, vectors = _ritz(a, k, which, steps, kw.get("v0"))
        return (values, vectors) if return_eigenvectors else values


def svds(package: Any, a: Any, *args: Any, **kw: Any) -> Any:
    """As SciPy's."""
    from scipy.sparse import linalg

    if kw.get("v0") is None:
        kw["v0"] = _start(min(a.shape))
    return linalg.svds(a, *args, **kw)


def lobpcg(package: Any, *args: Any, **kwargs: Any) -> Any:
    """As SciPy's, whose histories have an entry more than CuPy's: the last iteration's before and after refinement."""
    from scipy.sparse import linalg

    result = linalg.lobpcg(*args, **kwargs)
    histories = [[*history[:-2], history[-1]] for history in result[2:] if len(history) > 1]
    return (*result[:2], *histories) if len(histories) == len(result) - 2 else result


def minres(package: Any, *args: Any, tol: float = 1e-5, **kwargs: Any) -> Any:
    """As SciPy's, which has another name for the tolerance."""
    from scipy.sparse import linalg

    return linalg.minres(*args, rtol=tol, **kwargs)


# ---- factors without fill-in ----------------------------------------------------------------------


def incomplete_lu(package: Any, a: Any) -> Any:
    """A csr matrix's incomplete factors in its own places: no fill-in, no pivoting, the unit diagonal of L left out.

    ValueError for a pivot that is missing or zero."""
    data, indices, starts = a.data.tolist(), a.indices.tolist(), a.indptr.tolist()
    done: list[tuple[Any, list]] = []  # of each row above: its pivot, and what is right of it
    for i in range(a.shape[0]):
        places = range(starts[i], starts[i + 1])
        row = {indices[place]: data[place] for place in places}
        for k in sorted(column for column in row if column < i):
            pivot, right = done[k]
            factor = row[k] = row[k] / pivot
            for column, value in right:
                if column in row:
                    row[column] -= factor * value
        if not row.get(i):
            raise ValueError(f"a({i},{i}) is missing" if i not in row else f"u({i},{i}) is zero")
        done.append((row[i], [(column, value) for column, value in row.items() if column > i]))
        data[starts[i] : starts[i + 1]] = [row[indices[place]] for place in places]
    a.data[:] = data
    return a


class _InPlace:
    """Factors without fill-in, with what SuperLU's objects have."""

    perm_r = perm_c = None

    def __init__(self, a: Any) -> None:
        from scipy.sparse import identity, tril, triu

        made = incomplete_lu(None, a.tocsr(copy=True))
        self.shape, self.nnz = a.shape, made.nnz
        self.L = (tril(made, -1) + identity(a.shape[0], a.dtype)).tocsr()
        self.U = triu(made).tocsr()

    def solve(self, rhs: np.ndarray, trans: str = "N") -> np.ndarray:
        """The solution of ``L U x = rhs``, or with both transposed ('T'), or conjugated, too ('H')."""
        from scipy.sparse.linalg import spsolve_triangular

        if trans not in ("N", "T", "H"):
            raise ValueError("trans must be 'N', 'T' or 'H'")
        steps = [(self.L, True), (self.U, False)]
        if trans != "N":
            steps = [((m.T if trans == "T" else m.conj().T).tocsr(), not lower) for m, lower in reversed(steps)]
        for matrix, lower in steps:
            rhs = spsolve_triangular(matrix, rhs, lower=lower)
        return rhs


def spilu(A: Any, drop_tol: Any = None, fill_factor: Any = None, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
    """As SciPy's; without any fill-in (a factor of 1) as CuPy's."""
    from scipy.sparse import linalg

    if fill_factor == 1:
        return Factors("spilu", ((A, drop_tol, fill_factor, *args), kwargs), _InPlace(A))
    made = linalg.spilu(A, drop_tol, fill_factor, *args, **kwargs)
    return Factors("spilu", ((A, drop_tol, fill_factor, *args), kwargs), made)


MAKERS = {"cupyx.scipy.sparse.linalg.spilu": sparse.translated("scipy.sparse", spilu)}
OPERATIONS = {
    "incomplete_lu": incomplete_lu,
    "linalg.eigsh": eigsh,
    "linalg.svds": svds,
    "linalg.lobpcg": lobpcg,
    "linalg.minres": minres,
}
