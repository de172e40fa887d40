"""Train one network on all devices: each takes its part of every batch, gradients are all-reduced.

The gradients travel in buckets, each as soon as the backward pass has completed it and while that goes on: the
all-reduce runs on a stream of its own, and events tell the two streams about each other. The result is that of
one device, to rounding; ``--check`` trains on one device too and compares.

    python data_parallel.py [--devices 4] [--epochs 10] [--check] [--cifar FOLDER] [--scale-lr]
"""

import argparse
import time

import cupy as cp
import datasets
import network
import numpy as np
from cupy.cuda import nccl


class Replica:
    """One device: its copy of the network, its share of the data, and its streams."""

    def __init__(self, device, rank, ranks, sizes, data, options):
        self.device = cp.cuda.Device(device)
        with self.device:
            self.network = network.Network(sizes, options.bucket_kb << 10, options.dtype)
            self.x, self.y = (cp.asarray(np.ascontiguousarray(part[rank::ranks])) for part in data)
            self.beside = cp.cuda.Stream(non_blocking=True)
            self.ready = [cp.cuda.Event(disable_timing=True) for _ in self.network.buckets]
            self.reduced = [cp.cuda.Event(disable_timing=True) for _ in self.network.buckets]

    def part_of_batch(self, number, size):
        rows = slice(number * size, (number + 1) * size)
        return self.x[rows], self.y[rows]


def all_reduce(replicas, comms, bucket):
    """The sum of a bucket's gradients, on every device, beside the backward pass."""
    nccl.groupStart()
    for replica, comm in zip(replicas, comms):
        with replica.device:
            gradients = replica.network.buckets[bucket][1]
            replica.ready[bucket].record()
            replica.beside.wait_event(replica.ready[bucket])
            kind = nccl.NCCL_FLOAT64 if gradients.dtype == np.float64 else nccl.NCCL_FLOAT32
            pointer = gradients.data.ptr
            comm.allReduce(pointer, pointer, gradients.size, kind, nccl.NCCL_SUM, replica.beside.ptr)
    nccl.groupEnd()
    for replica in replicas:
        with replica.device:
            replica.reduced[bucket].record(replica.beside)


def step(replicas, comms, number, part, rate):
    """One batch: backward passes with their all-reduces, then the update."""
    passes = []
    for replica in replicas:
        with replica.device:
            x, y = replica.part_of_batch(number, part)
            passes.append(replica.network.gradients(x, y, part * len(replicas)))
    for _ in replicas[0].network.buckets:
        for replica, backward in zip(replicas, passes):
            with replica.device:
                bucket = next(backward)
        if comms:
            all_reduce(replicas, comms, bucket)
    for replica in replicas:
        with replica.device:
            current = cp.cuda.get_current_stream()
            for bucket, (parameters, gradients) in enumerate(replica.network.buckets):
                if comms:
                    current.wait_event(replica.reduced[bucket])
                parameters -= rate * gradients


def train(devices, data, sizes, options):
    """The mean loss of each epoch, and the replicas."""
    replicas = [Replica(device, rank, len(devices), sizes, data, options) for rank, device in enumerate(devices)]
    comms = nccl.NcclCommunicator.initAll(list(devices)) if len(devices) > 1 else []
    ranks, batch, rate = len(devices), options.batch, options.lr
    warm_up = 0
    if options.scale_lr:  # Goyal et al. 2017: k times the batch, k times the rate, reached step by step
        batch, warm_up = options.batch * ranks, max(1, len(data[0]) // (options.batch * ranks))
    part, batches = batch // ranks, len(data[0]) // batch
    losses, steps = [], 0
    for _ in range(options.epochs):
        shares = []
        for number in range(batches):
            steps += 1
            now = rate
            if options.scale_lr:
                now = rate * (1 + (ranks - 1) * min(1.0, steps / warm_up))
            step(replicas, comms, number, part, now)
            shares += [(replica.device, replica.network.loss) for replica in replicas]
        losses.append(sum(float(share) for _, share in shares) / batches)
    for comm in comms:
        comm.destroy()
    return losses, replicas


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Data-parallel training on all devices.")
    parser.add_argument("--devices", type=int, help="how many (default: all)")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="of all devices together; of each with --scale-lr")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--hidden", type=int, nargs="*", default=[256, 128])
    parser.add_argument("--bucket-kb", type=int, default=64, help="gradients that are all-reduced together")
    parser.add_argument("--scale-lr", action="store_true", help="the linear scaling rule, with a warm-up epoch")
    parser.add_argument("--cifar", metavar="FOLDER", help="CIFAR-10's binary files, instead of the digits")
    parser.add_argument("--check", action="store_true", help="compare with the training on one device")
    options = parser.parse_args(arguments)
    options.dtype = np.float64 if options.check else np.float32
    count = options.devices or cp.cuda.runtime.getDeviceCount()
    train_x, train_y, test_x, test_y = datasets.load(options.cifar, options.dtype)
    sizes = [train_x.shape[1], *options.hidden, 10]

    began = time.perf_counter()
    losses, replicas = train(range(count), (train_x, train_y), sizes, options)
    print(f"{count} devices, {options.epochs} epochs: {time.perf_counter() - began:.2f} s")
    print("loss by epoch  " + " ".join(f"{loss:.4f}" for loss in losses))
    with replicas[0].device:
        accuracy = replicas[0].network.accuracy(cp.asarray(test_x), cp.asarray(test_y))
    print(f"accuracy       {accuracy:.3f}")
    for replica in replicas:
        with replica.device:
            used = cp.get_default_memory_pool().used_bytes()
        print(f"device {replica.device.id}: {used / 1e6:8.2f} MB")
    if options.check:
        if options.scale_lr:
            raise SystemExit("--check compares equal batches: not with --scale-lr")
        alone, _ = train([0], (train_x, train_y), sizes, options)
        worst = max(abs(a - b) / abs(b) for a, b in zip(losses, alone))
        print(f"one device: the same losses within {worst:.1e}")
        if worst > 1e-9:
            raise SystemExit("the devices do not train what one device trains")


if __name__ == "__main__":
    main()
