"""A real Chromium without a window, told what to do over a pipe (Chrome DevTools Protocol)."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """`requests` are all that it asked for, `errors` all that a page or the console complained of."""

    def __init__(self, folder):
        reading, theirs_out = os.pipe()
        theirs_in, writing = os.pipe()
        words = [
            "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            "--disable-background-networking", "--disable-component-update",
        ]  # fmt: skip
        # the browser reads from descriptor 3 and writes to 4
        shell = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, CHROMIUM, *words, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.reading, self.writing, self.rest, self.last = reading, writing, b"", 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.loaded = False
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self(f"{domain}.enable")

    session = ""

    def __call__(self, method, **parameters):
        """Give a command, and wait for its answer."""
        self.last += 1
        said = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            said["sessionId"] = self.session
        os.write(self.writing, json.dumps(said).encode() + b"\0")
        end = time.monotonic() + 60
        while (found := self._next(end)).get("id") != self.last:
            self._event(found)
        assert "error" not in found, found
        return found["result"]

    def _next(self, end):
        while b"\0" not in self.rest:
            assert time.monotonic() < end and self.process.poll() is None, (
                "Chromium does not answer"
            )
            if select.select([self.reading], [], [], 1.0)[0]:
                self.rest += os.read(self.reading, 1 << 20)
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)

    def _event(self, found):
        kind, said = found.get("method"), found.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(said["exceptionDetails"]["text"])
        elif kind == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.errors.append(str(said["args"]))
        elif kind == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(said["entry"]["text"])
        elif kind == "Page.loadEventFired":
            self.loaded = True

    def open(self, path):
        self.loaded = False
        self("Page.navigate", url=f"file://{path}")
        end = time.monotonic() + 60
        while not self.loaded:
            self._event(self._next(end))

    def run(self, script):
        """The value of a script in the page; of a promise, what it comes to."""
        found = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def dark(self, yes):
        feature = {"name": "prefers-color-scheme", "value": "dark" if yes else "light"}
        self("Emulation.setEmulatedMedia", features=[feature])

    def width(self, pixels):
        size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self("Emulation.setDeviceMetricsOverride", **size)

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            self.session = ""
            self("Browser.close")
        self.process.kill()
        self.process.wait()
        os.close(self.reading)
        os.close(self.writing)
