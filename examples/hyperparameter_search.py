"""Try many settings at once: a process for each, spread over the devices, all over one data set.

The data set is read once and cached in files that all processes map. They know nothing of each other but the queue of
settings; each takes the next one, trains on its device and reports. Started with ``spawn``, as CUDA wants it.

    python hyperparameter_search.py [--processes 4] [--epochs 5]
"""

import argparse
import itertools
import multiprocessing
import tempfile
import time

import datasets

RATES = [0.02, 0.1, 0.5]
WIDTHS = [32, 128]


def search(number, settings, results, epochs, folder):
    """One process: settings until there are none."""
    import cupy as cp
    import network

    cp.cuda.Device(number % cp.cuda.runtime.getDeviceCount()).use()
    train_x, train_y, test_x, test_y = (cp.asarray(part) for part in datasets.cached(folder))
    while (setting := settings.get()) is not None:
        rate, width = setting
        model = network.Network([train_x.shape[1], width, 10])
        for _ in range(epochs):
            for start in range(0, len(train_x) - 63, 64):
                for bucket in model.gradients(train_x[start : start + 64], train_y[start : start + 64], 64):
                    pass
                for parameters, gradients in model.buckets:
                    parameters -= rate * gradients
        results.put((rate, width, model.accuracy(test_x, test_y), number))


def main(arguments=None):
    parser = argparse.ArgumentParser(description="A search for the best learning rate and width.")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cifar", metavar="FOLDER", help="CIFAR-10's binary files, instead of the digits")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        datasets.cache(folder, datasets.load(options.cifar))
        run(options, folder)


def run(options, folder):
    context = multiprocessing.get_context("spawn")
    settings, results = context.Queue(), context.Queue()
    tried = list(itertools.product(RATES, WIDTHS))
    for setting in [*tried, *[None] * options.processes]:
        settings.put(setting)
    began = time.perf_counter()
    processes = [
        context.Process(target=search, args=(number, settings, results, options.epochs, folder))
        for number in range(options.processes)
    ]
    for process in processes:
        process.start()
    found = []
    while len(found) < len(tried):
        try:
            found.append(results.get(timeout=1))
        except Exception:  # the queue's Empty: nothing yet
            if not any(process.is_alive() for process in processes):
                raise SystemExit("a process ended without its results") from None
    for process in processes:
        process.join()
    for rate, width, accuracy, number in sorted(found, key=lambda each: -each[2]):
        print(f"rate {rate:5.2f}  width {width:4d}  accuracy {accuracy:.3f}  (process {number})")
    print(f"{len(tried)} settings in {options.processes} processes: {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
