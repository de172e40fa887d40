"""``cupyx.signal``: signal processing beyond SciPy.

Nothing of it is there yet; every name says so when used.
"""

from rgpu import surface

__getattr__, __dir__ = surface.face(__name__)
