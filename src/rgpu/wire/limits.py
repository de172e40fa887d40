"""Every number that bounds what a peer may send, in one place."""

TEXT = 256  # characters of a name, a host, a user
LONG_TEXT = 1 << 20  # characters of a traceback or kernel source
INLINE_BYTES = 64 << 10  # bytes of data inside a message; more travels in its own frame
CHUNK_BYTES = 1 << 20  # bytes of one bulk frame; measured best at about 1 MiB
NEAR_CHUNK = 8 << 20  # the same through shared memory, where a message costs as much as 100 kB of copying
FRAME_BYTES = 16 << 20  # largest single frame a socket accepts
LIST = 65_536  # entries of a list or map in a message
HANDLES = 65_536  # handles freed in one command
BATCH = 4_096  # commands in one batch
REPLAYED = 65_536  # commands of one message with its repetitions written out
TEMPLATES = 16  # templates of one session
UPLOADS = 64  # contents of uploads that one session's worker keeps
UPLOAD_BYTES = 256 << 20  # bytes of them together
HOLES = 8_192  # places of a template that differ from repetition to repetition
FIELDS = 1_024  # fields of a structured dtype
NDIM = 64  # dimensions of an array (NumPy's own limit)
DEPTH = 16  # nesting of argument values
TABLE = 4_000_000  # live handles in one session
RESERVED = 65_536  # handles set aside for the results of one waiting call
