"""Train a small neural network on scikit-learn's handwritten digits, with the gradients written by hand.

Two layers, softmax, momentum, mini-batches: matrix products, broadcasting, fancy indexing and in-place
updates. Between two looks at the accuracy nothing is read back, so the host only issues work.

    python digits_mlp.py [--epochs 30] [--hidden 128]
"""

import argparse
import time

import cupy as cp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def initial(sizes, rng):
    """Weights and biases of each layer, drawn on the host so that every device count starts alike."""
    layers = []
    for before, after in zip(sizes[:-1], sizes[1:]):
        weights = rng.normal(0, np.sqrt(2 / before), (before, after)).astype(np.float32)
        layers.append((cp.asarray(weights), cp.zeros(after, cp.float32)))
    return layers


def forward(layers, x):
    (w1, b1), (w2, b2) = layers
    hidden = cp.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    logits -= logits.max(axis=1, keepdims=True)
    odds = cp.exp(logits)
    return hidden, odds / odds.sum(axis=1, keepdims=True)


def gradients(layers, x, y):
    hidden, probability = forward(layers, x)
    error = probability
    error[cp.arange(len(x)), y] -= 1
    error /= len(x)
    back = (error @ layers[1][0].T) * (hidden > 0)
    return [(x.T @ back, back.sum(axis=0)), (hidden.T @ error, error.sum(axis=0))]


def accuracy(layers, x, y):
    return float((forward(layers, x)[1].argmax(axis=1) == y).mean())


def main():
    parser = argparse.ArgumentParser(description="A neural network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    images, digits = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    split = train_test_split(images, digits, test_size=0.25, random_state=0, stratify=digits)
    train_x, test_x, train_y, test_y = (cp.asarray(part) for part in split)
    rng = np.random.default_rng(0)
    layers = initial([train_x.shape[1], args.hidden, 10], rng)
    speeds = [tuple(cp.zeros_like(p) for p in layer) for layer in layers]

    began = time.perf_counter()
    for epoch in range(args.epochs):
        order = cp.asarray(rng.permutation(len(train_x)))
        for start in range(0, len(train_x) - args.batch + 1, args.batch):
            chosen = order[start : start + args.batch]
            steps = gradients(layers, train_x[chosen], train_y[chosen])
            for layer, speed, step in zip(layers, speeds, steps):
                for parameter, velocity, gradient in zip(layer, speed, step):
                    velocity *= 0.9
                    velocity -= 0.1 * gradient
                    parameter += velocity
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:3d}   accuracy {accuracy(layers, test_x, test_y):.3f}", flush=True)
    final = accuracy(layers, test_x, test_y)
    print(f"{args.epochs} epochs in {time.perf_counter() - began:.2f} s, accuracy {final:.3f}")
    if final < 0.95:
        raise SystemExit("the network did not learn")


if __name__ == "__main__":
    main()
