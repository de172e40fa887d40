"""``cupy.lib``: stride tricks."""

from rgpu.lib import stride_tricks as stride_tricks
