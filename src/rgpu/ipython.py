"""`%load_ext rgpu` in IPython and Jupyter: from then on, `import cupy` in the notebook is rgpu.

Only installs and removes the alias; when a real cupy was imported before, that is refused with the reason.
"""

from __future__ import annotations

from rgpu.alias import install, uninstall


def load_ipython_extension(shell: object) -> None:
    install()


def unload_ipython_extension(shell: object) -> None:
    uninstall()
