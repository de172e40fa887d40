"""Dask over the devices of the pool: a matrix of random numbers in chunks, standardized, and its covariance.

Chunks are spread over the devices. Each of Dask's threads works on a device of its own; what it needs from another one
is copied from device to device, past the client.

    python dask_array.py [--rows 4000] [--columns 400]
"""

import argparse
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import cupy as cp
import dask
import dask.array as da
import numpy as np


def threads_with_devices(count):
    """A pool of threads, the n-th of which uses device n."""
    numbers, lock = iter(range(count)), threading.Lock()

    def begin():
        with lock:
            cp.cuda.Device(next(numbers)).use()

    return ThreadPoolExecutor(count, initializer=begin)


def to_device(block, count, block_info=None):
    """A chunk on the device that its place in the array says."""
    with cp.cuda.Device(block_info[0]["chunk-location"][0] % count):
        return cp.asarray(block)


def device_of(chunk):
    """Where a chunk lies, seen by the task that has it."""
    return np.array([[chunk.device.id]])


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Dask arrays whose chunks lie on all devices.")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--columns", type=int, default=400)
    parser.add_argument("--devices", type=int, help="how many (default: all)")
    options = parser.parse_args(arguments)
    count = options.devices or cp.cuda.runtime.getDeviceCount()
    warnings.filterwarnings("ignore", "The device where the array resides")  # the copies between devices are meant
    host = np.random.default_rng(0).normal(3, 2, (options.rows, options.columns))

    began = time.perf_counter()
    with threads_with_devices(count) as pool, dask.config.set(pool=pool):
        x = da.from_array(host, chunks=(max(1, options.rows // (2 * count)), options.columns))
        x = x.map_blocks(to_device, count, dtype=host.dtype, meta=cp.empty((0, 0))).persist()
        places = x.map_blocks(device_of, chunks=(1, 1), dtype=int, meta=np.empty((0, 0), int)).compute()
        standard = (x - x.mean(axis=0)) / x.std(axis=0)
        covariance = (standard.T @ standard / options.rows).compute()
    print(f"chunks on devices {sorted(set(places.ravel().tolist()))}, {time.perf_counter() - began:.2f} s")
    expected = np.corrcoef(host, rowvar=False)
    worst = float(abs(cp.asnumpy(covariance) - expected).max())
    print(f"the covariance of {options.columns} columns is NumPy's within {worst:.1e}")
    if worst > 1e-9:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
