"""Train one network with a parameter server: device 0 keeps the parameters, the others compute gradients.

Each step every worker pulls the parameters, computes the gradients of its part of the batch and pushes them; the
server adds them up and updates. Copies go from device to device, and nothing is read by the host but the loss
at the end of an epoch.

    python parameter_server.py [--devices 4] [--epochs 10] [--cifar FOLDER] [--check]
"""

import argparse
import time

import cupy as cp
import datasets
import network
import numpy as np


class Worker:
    """A device that computes gradients of its share of the data."""

    def __init__(self, device, rank, ranks, sizes, data, dtype):
        self.device = cp.cuda.Device(device)
        with self.device:
            self.network = network.Network(sizes, dtype=dtype)
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


def train(devices, data, sizes, options, batch):
    """The server, the workers and the mean loss of each epoch."""
    with cp.cuda.Device(0):
        server = network.Network(sizes, dtype=options.dtype)
    ranks = len(devices)
    workers = [Worker(device, rank, ranks, sizes, data, options.dtype) for rank, device in enumerate(devices)]
    part, epochs = batch // len(workers), []
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
        epochs.append(sum(map(float, losses)) / batches)
        print(f"epoch {epoch + 1:3d}   loss {epochs[-1]:.4f}", flush=True)
    return server, workers, epochs


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Training with a parameter server on device 0.")
    parser.add_argument("--devices", type=int, help="how many (default: all)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--cifar", metavar="FOLDER", help="CIFAR-10's binary files, instead of the digits")
    parser.add_argument("--check", action="store_true", help="compare with the training on one device")
    options = parser.parse_args(arguments)
    options.dtype = np.float64 if options.check else np.float32
    count = options.devices or cp.cuda.runtime.getDeviceCount()
    train_x, train_y, test_x, test_y = datasets.load(options.cifar, options.dtype)
    sizes = [train_x.shape[1], 128, 10]
    began = time.perf_counter()
    devices = list(range(1, count)) or [0]
    batch = options.batch // len(devices) * len(devices)
    server, workers, losses = train(devices, (train_x, train_y), sizes, options, batch)
    with cp.cuda.Device(0):
        accuracy = server.accuracy(cp.asarray(test_x), cp.asarray(test_y))
    print(f"{count} devices, {options.epochs} epochs: {time.perf_counter() - began:.2f} s, accuracy {accuracy:.3f}")
    for worker in workers:
        with worker.device:
            print(f"device {worker.device.id}: {cp.get_default_memory_pool().used_bytes() / 1e6:8.2f} MB")
    if options.check:
        _, _, alone = train([0], (train_x, train_y), sizes, options, batch)
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, alone))
        print(f"one device: the same losses within {worst:.1e}")
        if worst > 1e-9:
            raise SystemExit("the workers do not train what one device trains")
    elif accuracy < 0.85:
        raise SystemExit("the network did not learn")


if __name__ == "__main__":
    main()
