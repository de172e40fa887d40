"""`rgpu version`: the versions of rgpu, of the CuPy it follows, and of Python."""

from __future__ import annotations

import argparse
import sys

HELP = "print the versions of rgpu and of the CuPy it follows"


def arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def run(options: argparse.Namespace) -> int:
    from rgpu import surface
    from rgpu._version import __version__

    print(f"rgpu {__version__} (the API of CuPy {surface.cupy_version()}), Python {sys.version.split()[0]}")
    return 0
