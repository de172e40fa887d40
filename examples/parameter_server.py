"""Train one network with a parameter server: device 0 keeps the parameters, the others compute gradients.

Each step every worker pulls the parameters, computes the gradients of its part of the batch and pushes them; the
server adds them up and updates. Copies go from device to device, and nothing is read by the host but the loss
at the end of an epoch.

    python parameter_server.py [--devices 4] [--epochs 10] [--cifar FOLDER]
"""

import argparse
import time

import cupy as cp
import datasets
import network
import numpy as np


class Worker:
    """A device that computes gradients of its share of the data."""

    def __init__(self, device, rank, ranks, sizes, data):
        self.device = cp.cuda.Device(device)
        with self.device:
            self.network = network.Network(sizes)
            self.x, self.y = (cp.asarray(np.ascontiguousarray(part[rank::ranks])) for part in data)

    def pull(self, server):
        with self.device:
            for (mine, _), (theirs, _) in zip(self.network.buckets, server.buckets):
                cp.cuda.runtime.memcpyPeerAsync(
                    mine.data.ptr, self.device.id, theirs.data.ptr, 0, mine.nbytes, cp.cuda.Stream.null.ptr
                )

    def compute(self, number, part, total):
        with self.device:
            rows = slice(number * part, (number + 1) * part)
            for _ in self.network.gradients(self.x[rows], self.y[rows], total):
                pass
            return self.network.loss


def train(devices, data, sizes, options):
    with cp.cuda.Device(0):
        server = network.Network(sizes)
    workers = [Worker(device, rank, len(devices), sizes, data) for rank, device in enumerate(devices)]
    part = options.batch // len(workers)
    batches = len(data[0]) // (part * len(workers))
    for epoch in range(options.epochs):
        losses = []
        for number in range(batches):
            for worker in workers:
                worker.pull(server)
            losses += [worker.compute(number, part, part * len(workers)) for worker in workers]
            with cp.cuda.Device(0):
                for bucket, (parameters, _) in enumerate(server.buckets):
                    for worker in workers:
                        parameters -= options.lr * cp.asarray(worker.network.buckets[bucket][1])
        print(f"epoch {epoch + 1:3d}   loss {sum(map(float, losses)) / batches:.4f}", flush=True)
    return server


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Training with a parameter server on device 0.")
    parser.add_argument("--devices", type=int, help="how many (default: all)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--cifar", metavar="FOLDER", help="CIFAR-10's binary files, instead of the digits")
    options = parser.parse_args(arguments)
    count = options.devices or cp.cuda.runtime.getDeviceCount()
    train_x, train_y, test_x, test_y = datasets.load(options.cifar)
    sizes = [train_x.shape[1], 128, 10]
    began = time.perf_counter()
    server = train(list(range(1, count)) or [0], (train_x, train_y), sizes, options)
    with cp.cuda.Device(0):
        accuracy = server.accuracy(cp.asarray(test_x), cp.asarray(test_y))
    print(f"{count} devices, {options.epochs} epochs: {time.perf_counter() - began:.2f} s, accuracy {accuracy:.3f}")
    if accuracy < 0.85:
        raise SystemExit("the network did not learn")


if __name__ == "__main__":
    main()
