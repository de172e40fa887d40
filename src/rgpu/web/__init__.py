"""The web face of a daemon or a pool: a page, REST and Prometheus metrics, read-only.

Knows the dictionaries that rgpu-smi prints (servers > devices > sessions) and HTTP; never a socket of a session,
and nothing here can change anything. A `Board` is published to from one thread; a `WebServer` reads it in its own.
"""

from rgpu.web.board import Board
from rgpu.web.server import WebServer, serve
