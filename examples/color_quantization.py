"""Reduce a photograph to a few colours with k-means, on every GPU there is.

The pixels are divided among the devices. In each round every device finds the nearest centre of each of its
pixels and adds its pixels up by centre; only those sums (k rows) come to the host, which moves the centres.
All devices are given their work before the first answer is awaited.

    python color_quantization.py [photo] [--colours 64] [--output quantized.png] [--check]
"""

import argparse
import time

import cupy as cp
import numpy as np
from PIL import Image


def load_photo(path):
    if path is None:
        from sklearn.datasets import load_sample_image

        return load_sample_image("china.jpg")
    return np.asarray(Image.open(path).convert("RGB"))


def nearest(pixels, centres):
    """The nearest centre of each pixel, and the squared distance less the pixel's own square."""
    scores = (centres * centres).sum(axis=1) - 2 * (pixels @ centres.T)
    return scores.argmin(axis=1), scores.min(axis=1)


def partial_sums(xp, pixels, centres):
    """One row for each centre: the sum of its pixels' channels, and their number. And the inertia."""
    labels, distances = nearest(pixels, centres)
    member = (labels[:, None] == xp.arange(len(centres))).astype(xp.float32)
    sums = member.T @ pixels
    counts = member.sum(axis=0, dtype=xp.float64)
    inertia = distances.sum(dtype=xp.float64) + (pixels * pixels).sum(dtype=xp.float64)
    return xp.concatenate([sums.astype(xp.float64), counts[:, None]], axis=1), inertia


def moved(centres, sums):
    """Each centre goes to the mean of its pixels; one without pixels stays."""
    counts = sums[:, 3:]
    return np.where(counts > 0, sums[:, :3] / np.maximum(counts, 1), centres).astype(np.float32)


def quantize(pixels, centres, iterations, devices):
    """Returns the centres, the quantized pixels and the inertia of each round."""
    parts, history = [], []
    for device, part in enumerate(np.array_split(pixels, devices)):
        with cp.cuda.Device(device):
            parts.append(cp.asarray(part))
    for iteration in range(iterations):
        answers = []
        for device, part in enumerate(parts):
            with cp.cuda.Device(device):
                answers.append(partial_sums(cp, part, cp.asarray(centres)))
        sums, inertia = 0, 0.0
        for device, (part_sums, part_inertia) in enumerate(answers):
            with cp.cuda.Device(device):
                sums = sums + cp.asnumpy(part_sums)
                inertia += float(part_inertia)
        history.append(inertia)
        print(f"iteration {iteration + 1:3d}   inertia {inertia:12.4f}", flush=True)
        centres = moved(centres, sums)
    pictures = []
    for device, part in enumerate(parts):
        with cp.cuda.Device(device):
            palette = cp.asarray(centres)
            labels, _ = nearest(part, palette)
            pictures.append(cp.clip(cp.rint(palette[labels] * 255), 0, 255).astype(cp.uint8))
    return centres, np.concatenate([cp.asnumpy(picture) for picture in pictures]), history


def check(pixels, centres, iterations, history):
    """The same rounds with NumPy on the host; the inertia has to agree round by round."""
    for iteration in range(iterations):
        sums, inertia = partial_sums(np, pixels, centres)
        if abs(inertia - history[iteration]) > 1e-3 * inertia:
            raise SystemExit(f"iteration {iteration + 1}: inertia {history[iteration]}, NumPy has {inertia}")
        centres = moved(centres, sums)
    print("check: NumPy on the host agrees in every iteration")


def main():
    parser = argparse.ArgumentParser(description="Colour quantization by k-means on all devices.")
    parser.add_argument("photo", nargs="?", help="an image file (default: scikit-learn's china.jpg)")
    parser.add_argument("--colours", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--devices", type=int, help="how many devices to use (default: all)")
    parser.add_argument("--output", default="quantized.png")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="compare with NumPy on the host")
    args = parser.parse_args()

    photo = load_photo(args.photo)
    pixels = np.ascontiguousarray(photo.reshape(-1, 3), dtype=np.float32) / 255
    devices = args.devices or cp.cuda.runtime.getDeviceCount()
    _, different = np.unique(photo.reshape(-1, 3) @ [1, 256, 65536], return_index=True)
    start = pixels[np.random.default_rng(args.seed).choice(different, args.colours, replace=False)]
    height, width, _ = photo.shape
    print(f"{width} x {height} pixels, {args.colours} colours, {devices} device(s)", flush=True)

    began = time.perf_counter()
    _, quantized, history = quantize(pixels, start, args.iterations, devices)
    print(f"{args.iterations} iterations in {time.perf_counter() - began:.2f} s")
    Image.fromarray(quantized.reshape(photo.shape)).save(args.output)
    print(f"saved {args.output}")
    if args.check:
        check(pixels, start, args.iterations, history)


if __name__ == "__main__":
    main()
