"""The fixed header in front of every session message.

48 bytes, little-endian: who speaks (session id, epoch), what it is, and how far the speaker has come
in the other direction (``received``, ``done``), so that every message acknowledges for free.
``seq`` is the number of a DATA message; a PROBE's own number, echoed by its PROBE_ACK; else 0.
"""

import struct

HEADER = struct.Struct("<2sBxI16sQQQ")  # magic, kind, epoch, session id, seq, received, done
MAGIC = b"rg"
DATA, ACK, PROBE, PROBE_ACK = range(1, 5)
