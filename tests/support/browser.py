"""A real browser for tests: headless Chromium, driven by the DevTools protocol over its websocket."""

import base64
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import websocket

from tests.support.waiting import wait_until

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-port=0 --remote-allow-origins=* --hide-scrollbars"
).split()


@functools.cache
def chromium():
    """The path of an installed Chromium, or None. scripts/test installs Debian's where it is root."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One window of a fresh profile. ``problems`` collects exceptions and console errors of the page."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="rgpu-browser-")
        self._process = subprocess.Popen(
            [chromium(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if "PROXY" not in key.upper()},
        )
        self._number, self.problems = 0, []
        try:
            self._socket = websocket.create_connection(self._endpoint(), timeout=20)
            target = next(t for t in self._ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
            self._session = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.ask(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def _endpoint(self):
        end, text = time.monotonic() + 30, b""
        while time.monotonic() < end:
            line = self._process.stderr.readline()
            if match := re.search(rb"DevTools listening on (ws://\S+)", line):
                return match[1].decode()
            if not line:
                break
            text += line
        raise AssertionError(f"Chromium did not start: {text.decode(errors='replace')[-800:]}")

    def ask(self, method, **parameters):
        """A question to the page."""
        return self._ask(method, session=self._session, **parameters)

    def _ask(self, method, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._heard(answer)

    def _heard(self, event):
        told = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(told["exceptionDetails"].get("exception", told["exceptionDetails"])))
        elif event.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.problems.append(told["entry"]["text"])

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def look(self, expression):
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression, timeout=20):
        """Wait until an expression is true; its value."""
        return wait_until(lambda: self.look(expression), timeout, every=0.05)

    def window(self, width, height, dark=False, scale=1):
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        with contextlib.suppress(AttributeError, OSError, websocket.WebSocketException):
            self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with its helpers, which know nothing of ours
        self._process.wait(10)
        self._process.stderr.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
