"""Data for the training examples: scikit-learn's digits, or CIFAR-10 from a folder.

CIFAR-10 is read in its binary form (https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz, unpacked): records of
one label byte and 3072 pixel bytes. Both come as (train x, train y, test x, test y), NumPy, x in float32.
"""

from pathlib import Path

import numpy as np

CIFAR10_RECORD = 1 + 3 * 32 * 32
CIFAR10_FILES = [f"data_batch_{number}.bin" for number in range(1, 6)], ["test_batch.bin"]


def digits(dtype=np.float32):
    """1,797 images of 8 x 8 in ten classes; the order is shuffled once and always the same."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype(dtype) / 16, y[order].astype(np.int64)
    cut = len(x) * 4 // 5
    return x[:cut], y[:cut], x[cut:], y[cut:]


def read_cifar10_file(path):
    """(n, 3072) uint8 images, channels first, and (n,) labels of one file."""
    data = np.fromfile(path, np.uint8)
    if not data.size or data.size % CIFAR10_RECORD:
        raise SystemExit(f"{path}: {data.size} bytes are no records of {CIFAR10_RECORD}: is it CIFAR-10's binary form?")
    records = data.reshape(-1, CIFAR10_RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise SystemExit(f"{path}: label {labels.max()}, where 0 to 9 are expected: is it CIFAR-10's binary form?")
    return records[:, 1:], labels


def cifar10(folder, dtype=np.float32):
    """50,000 training and 10,000 test images of 3 x 32 x 32 in ten classes, from -0.5 to 0.5."""
    parts = []
    for names in CIFAR10_FILES:
        missing = [name for name in names if not (Path(folder) / name).is_file()]
        if missing:
            raise SystemExit(f"{folder} lacks {', '.join(missing)}: unpack cifar-10-binary.tar.gz there")
        images, labels = zip(*(read_cifar10_file(Path(folder) / name) for name in names))
        parts += [np.concatenate(images).astype(dtype) / 255 - dtype(0.5), np.concatenate(labels)]
    return tuple(parts)


def cache(folder, parts):
    """Write what ``load`` gave where many processes can have it by ``cached``, once in memory for all of them."""
    for number, part in enumerate(parts):
        np.save(Path(folder) / f"{number}.npy", part)


def cached(folder):
    return tuple(np.load(Path(folder) / f"{number}.npy", mmap_mode="r") for number in range(4))


def load(cifar_folder=None, dtype=np.float32):
    return cifar10(cifar_folder, dtype) if cifar_folder else digits(dtype)
