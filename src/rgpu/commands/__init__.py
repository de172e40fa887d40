"""The commands of `rgpu`, a module each: `HELP`, `arguments(parser)`, `run(options)` giving the exit code.

`rgpu.cli` is the table of them. They read arguments and print; the work is done by the rooms below.
"""
