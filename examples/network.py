"""A fully connected network with its gradients written by hand, for the training examples.

The parameters of some layers lie in one flat array, a bucket, and their gradients in another: what several
devices exchange is whole buckets, in the order in which the backward pass completes them.
"""

import cupy as cp
import numpy as np


class Network:
    """ReLU layers and a softmax, on the device that is current. ``buckets``: [[parameters, gradients], ...],
    last layer first; a bucket is closed when it holds ``bucket_bytes``."""

    def __init__(self, sizes, bucket_bytes=1 << 20, dtype=np.float32, seed=0):
        rng = np.random.default_rng(seed)  # on the host: every device begins alike
        shapes = list(zip(sizes[:-1], sizes[1:]))
        values = [rng.normal(0, np.sqrt(2 / before), (before, after)).astype(dtype) for before, after in shapes]
        self.layers, self.slopes, self.buckets, self.bucket_of = [None] * len(shapes), [None] * len(shapes), [], {}
        waiting = []
        for layer in reversed(range(len(shapes))):
            waiting.append(layer)
            nbytes = sum((b + 1) * a for b, a in (shapes[i] for i in waiting)) * np.dtype(dtype).itemsize
            if nbytes >= bucket_bytes or layer == 0:
                self._close_bucket(waiting, shapes, values, dtype)
                waiting = []

    def _close_bucket(self, layers, shapes, values, dtype):
        size = sum((before + 1) * after for before, after in (shapes[i] for i in layers))
        parameters, gradients = cp.zeros(size, dtype), cp.zeros(size, dtype)
        start = 0
        for layer in layers:
            before, after = shapes[layer]
            middle, end = start + before * after, start + (before + 1) * after
            self.layers[layer] = parameters[start:middle].reshape(before, after), parameters[middle:end]
            self.slopes[layer] = gradients[start:middle].reshape(before, after), gradients[middle:end]
            self.layers[layer][0][...] = cp.asarray(values[layer])
            start = end
        self.bucket_of[layers[-1]] = len(self.buckets)  # complete when this layer's gradient is there
        self.buckets.append([parameters, gradients])

    def forward(self, x):
        """What each layer got, and the logits."""
        inputs = []
        for number, (weights, bias) in enumerate(self.layers):
            inputs.append(x)
            x = x @ weights + bias
            if number < len(self.layers) - 1:
                x = cp.maximum(x, 0)
        return inputs, x

    def gradients(self, x, y, total):
        """The backward pass for examples ``x``, ``y`` that are part of a batch of ``total``. Yields the number of each
        bucket as soon as its gradients are complete; after the last one ``self.loss`` is this part's share."""
        inputs, logits = self.forward(x)
        logits -= logits.max(axis=1, keepdims=True)
        odds = cp.exp(logits)
        sums = odds.sum(axis=1, keepdims=True)
        rows = cp.arange(len(x))
        self.loss = (cp.log(sums[:, 0]) - logits[rows, y]).sum() / total
        error = odds / sums
        error[rows, y] -= 1
        error /= total
        for layer in reversed(range(len(self.layers))):
            weights_slope, bias_slope = self.slopes[layer]
            weights_slope[...] = inputs[layer].T @ error
            bias_slope[...] = error.sum(axis=0)
            if layer in self.bucket_of:
                yield self.bucket_of[layer]
            if layer:
                error = (error @ self.layers[layer][0].T) * (inputs[layer] > 0)

    def accuracy(self, x, y):
        return float((self.forward(x)[1].argmax(axis=1) == y).mean())
