"""Solve the Poisson equation on a square with conjugate gradients; the matrix is never stored.

The unknowns live on an n x n grid whose edge is held at zero. The Laplacian is five shifted views of one
array, so the program is mostly slices, in-place updates and reductions. The scalars stay on the device; the
host looks at the residual only every few rounds, so that it can run ahead.

    python conjugate_gradient.py [--size 256] [--tolerance 1e-8]
"""

import argparse
import time

import cupy as cp


def laplacian(u, out):
    """out = -laplace(u) times the square of the grid spacing, with zeros beyond the edge."""
    cp.multiply(u, 4, out=out)
    out[1:, :] -= u[:-1, :]
    out[:-1, :] -= u[1:, :]
    out[:, 1:] -= u[:, :-1]
    out[:, :-1] -= u[:, 1:]
    return out


def solve(b, tolerance, most, look_every=20):
    x = cp.zeros_like(b)
    r = b.copy()
    p = r.copy()
    q = cp.empty_like(b)
    rr = cp.vdot(r, r)
    goal = float(rr) * tolerance**2
    for iteration in range(1, most + 1):
        laplacian(p, q)
        alpha = rr / cp.vdot(p, q)
        x += alpha * p
        r -= alpha * q
        fresh = cp.vdot(r, r)
        p *= fresh / rr
        p += r
        rr = fresh
        if iteration % look_every == 0 and float(rr) < goal:
            return x, iteration
    return x, most


def main():
    parser = argparse.ArgumentParser(description="Poisson's equation by conjugate gradients.")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--tolerance", type=float, default=1e-8)
    args = parser.parse_args()

    n = args.size
    h = 1 / (n + 1)
    axis = cp.arange(1, n + 1) * h
    exact = cp.sin(cp.pi * axis)[:, None] * cp.sin(2 * cp.pi * axis)[None, :]
    exact += axis[:, None] * (1 - axis[:, None]) * (axis * (1 - axis))[None, :]
    b = laplacian(exact, cp.empty_like(exact))

    began = time.perf_counter()
    x, iterations = solve(b, args.tolerance, most=10 * n)
    error = float(cp.abs(x - exact).max())
    seconds = time.perf_counter() - began
    print(f"{n} x {n} unknowns: {iterations} iterations, {seconds:.2f} s, largest error {error:.1e}")
    if error > 1e-5:
        raise SystemExit("the solution is wrong")


if __name__ == "__main__":
    main()
