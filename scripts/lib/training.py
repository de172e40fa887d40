"""Training steps for scripts/bench: one source, run on NumPy in process and through rgpu.

``xp`` is the array module, as in programs written for both. Data are scikit-learn's digits (8 x 8 images, 10
classes), in batches of 128; all of it lies on the device unless a step is given host arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

BATCH = 128
RATE = 0.05


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 64) in 0..1 and classes as rows of 0 and 1, in float32."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.data / 16).astype(np.float32), np.eye(10, dtype=np.float32)[found.target]


def _softmax_slope(xp: Any, scores: Any, y: Any) -> tuple[Any, Any]:
    """The mean cross entropy, and its slope by the scores."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    powers = xp.exp(shifted)
    chances = powers / powers.sum(axis=1, keepdims=True)
    loss = -(y * xp.log(chances + 1e-7)).sum() / len(y)
    return loss, (chances - y) / len(y)


class _Model:
    """Weights and their momenta on one device."""

    def __init__(self, xp: Any, shapes: list[tuple]) -> None:
        rng = np.random.default_rng(7)
        self.xp = xp
        scaled = [rng.normal(0, (2 / max(1, np.prod(s[:-1]))) ** 0.5, s) if len(s) > 1 else np.zeros(s) for s in shapes]
        self.weights = [xp.asarray(w.astype(np.float32)) for w in scaled]
        self.momenta = [xp.zeros(s, np.float32) for s in shapes]

    def update(self, slopes: list) -> None:
        for weight, momentum, slope in zip(self.weights, self.momenta, slopes):
            momentum *= 0.9
            momentum -= RATE * slope
            weight += momentum


class Mlp(_Model):
    """Two hidden layers; about 60 array operations a step."""

    def __init__(self, xp: Any, width: int) -> None:
        super().__init__(xp, [(64, width), (width,), (width, width), (width,), (width, 10), (10,)])

    def step(self, x: Any, y: Any) -> Any:
        xp = self.xp
        w1, b1, w2, b2, w3, b3 = self.weights
        h1 = xp.maximum(x @ w1 + b1, 0)
        h2 = xp.maximum(h1 @ w2 + b2, 0)
        loss, d3 = _softmax_slope(xp, h2 @ w3 + b3, y)
        d2 = (d3 @ w3.T) * (h2 > 0)
        d1 = (d2 @ w2.T) * (h1 > 0)
        self.update([x.T @ d1, d1.sum(axis=0), h1.T @ d2, d2.sum(axis=0), h2.T @ d3, d3.sum(axis=0)])
        return loss


class Cnn(_Model):
    """A 3 x 3 convolution as a product of patches, 2 x 2 mean pooling, a dense layer; about 100 operations a step."""

    CHANNELS = 16

    def __init__(self, xp: Any, _: int) -> None:
        channels = self.CHANNELS
        super().__init__(xp, [(9, channels), (channels,), (9 * channels, 64), (64,), (64, 10), (10,)])

    def step(self, x: Any, y: Any) -> Any:
        xp, n, channels = self.xp, len(x), self.CHANNELS
        kernel, bias, w1, b1, w2, b2 = self.weights
        images = x.reshape(n, 8, 8)
        patches = xp.empty((n, 6, 6, 9), np.float32)
        for i in range(3):
            for j in range(3):
                patches[..., 3 * i + j] = images[:, i : i + 6, j : j + 6]
        flat = patches.reshape(n * 36, 9)
        maps = xp.maximum(flat @ kernel + bias, 0)
        pooled = maps.reshape(n, 3, 2, 3, 2, channels).mean(axis=(2, 4)).reshape(n, 9 * channels)
        hidden = xp.maximum(pooled @ w1 + b1, 0)
        loss, d2 = _softmax_slope(xp, hidden @ w2 + b2, y)
        d1 = (d2 @ w2.T) * (hidden > 0)
        down = (d1 @ w1.T).reshape(n, 3, 1, 3, 1, channels) / 4
        below = xp.broadcast_to(down, (n, 3, 2, 3, 2, channels)).reshape(n * 36, channels) * (maps > 0)
        slopes = [flat.T @ below, below.sum(axis=0), pooled.T @ d1, d1.sum(axis=0), hidden.T @ d2, d2.sum(axis=0)]
        self.update(slopes)
        return loss


def runner(xp: Any, model: type[_Model], width: int, *, reads: bool = False, uploads: bool = False) -> Callable:
    """A function of n that makes n steps and waits for the last; returns the last loss, which all of them decided."""
    images, classes = digits()
    net = model(xp, width)
    starts = range(0, len(images) - BATCH, BATCH)
    batches = [(images[i : i + BATCH], classes[i : i + BATCH]) for i in starts]
    if not uploads:
        batches = [(xp.asarray(x), xp.asarray(y)) for x, y in batches]

    def run(steps: int) -> float:
        loss: Any = 0.0
        for n in range(steps):
            x, y = batches[n % len(batches)]
            if uploads:
                x, y = xp.asarray(x), xp.asarray(y)
            loss = net.step(x, y)
            if reads:
                loss = float(loss)
        return float(loss)

    return run
