"""`rgpu web`: the page of the whole pool, served on this machine. The same page as a daemon's `--http`."""

from __future__ import annotations

import argparse
import contextlib
import time

HELP = "serve a web page of the whole pool on this machine"
DESCRIPTION = """Serve a web page of all servers in RGPU_SERVERS, with live charts, on this machine's loopback address.
The same address has /metrics for Prometheus and /v1/gpus, /v1/sessions as JSON. Ctrl-C ends it.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http", metavar="ADDR", default="9401", help="port, or address and port (default: 9401)")
    parser.add_argument("--http-token-file", metavar="FILE", help="what readers must show; needed off loopback")
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run(options: argparse.Namespace) -> int:
    from rgpu import config, web
    from rgpu._version import __version__
    from rgpu.errors import RegistryUnavailable
    from rgpu.smi import snapshot

    try:
        address = config.parse_http(options.http)
    except ValueError as error:
        options.parser.error(f"--http: {error}")
    board = web.Board(__version__)
    addresses = snapshot.addresses()
    board.publish(snapshot.take(addresses))
    page = web.serve(address, board, options.http_token_file)
    print(f"rgpu web: the pool is shown on {page.url}", flush=True)
    try:
        if options.open:
            import webbrowser

            webbrowser.open(page.url)
        while True:
            time.sleep(1.0)
            with contextlib.suppress(RegistryUnavailable):  # then those that it knew last
                addresses = snapshot.addresses()
            board.publish(snapshot.take(addresses))
    except KeyboardInterrupt:
        return 0
    finally:
        page.close()
