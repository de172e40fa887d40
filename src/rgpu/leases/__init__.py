"""What is asked for when devices are leased, and who gets which: policy, shared by client and server.

Pure: facts in, decisions out. No sockets, no processes, no files, and the clock is given; what is leased now is
remembered elsewhere (``server.lease``).
"""
