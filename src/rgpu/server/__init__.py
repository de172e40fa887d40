"""The GPU host's side: the daemon that admits, and the workers that execute.

Whatever imports this is a server process. A program inside `rgpu run` may start one, and in it cupy must be
CuPy itself, so the alias that the environment brought along is taken out first.
"""

from rgpu.alias import uninstall

uninstall()
