"""A headless Chromium that opens pages and answers questions about them, spoken to over a pair of pipes.

Chrome's DevTools protocol (https://chromedevtools.github.io/devtools-protocol/): JSON messages, a zero byte after each.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_PATIENCE = 120  # seconds for one answer, on a busy machine


class Browser:
    """One browser with one tab.

    Args:
        profile: an empty folder for what it stores.
    """

    def __init__(self, profile: Path):
        reads, self._commands = os.pipe()
        self._answers, writes = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        redirected = f'exec "$@" 3<&{reads} 4>&{writes}'  # where Chromium looks for the pipes
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", PROGRAM, *flags],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._buffer, self._number, self.events = b"", 0, []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, page: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Shows a file in a window of so many CSS pixels, like a phone's below 600."""
        self.events = []
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", screen)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._call("Page.navigate", {"url": page.as_uri()})
        deadline = time.monotonic() + _PATIENCE
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive(deadline)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console said since the page was opened: errors, warnings, what a policy blocked."""
        said = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                said.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                said.append(str(event["params"]["args"]))
            elif event["method"] == "Log.entryAdded":
                said.append(event["params"]["entry"]["text"])
        return said

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._call("Browser.close", session=False)
        self._process.terminate()
        self._process.wait(30)
        os.close(self._commands)
        os.close(self._answers)

    def _call(self, method: str, parameters: dict[str, Any] | None = None, session: bool = True) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if session and getattr(self, "_session", None):
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        """The next message; events are kept."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
