"""A headless browser, driven over its own debugging pipe: what tests of pages look with.

Chromium speaks the DevTools protocol as JSON messages, each ended by a zero byte, on the descriptors 3 and 4 that it
inherits (--remote-debugging-pipe). So no driver, no port and no further package is needed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ANSWER_SECONDS = 120.0  # more than any page needs on a busy machine


def find_browser() -> str | None:
    """The path of a Chromium or Chrome, None where none is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One process with one page; a context manager."""

    def __init__(self, executable: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        arguments = [
            executable, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run",
            "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
        ]  # fmt: skip
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")  # Chromium's sandbox refuses root
        # The shell moves the two descriptors to 3 and 4, whatever they are here.
        command = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, "browser", *arguments, "about:blank"], pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)  # the browser ends with its pipe
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command, keep the events that come before its answer, return the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            received = os.read(self._in, 1 << 16) if ready else b""
            if not received:
                raise TimeoutError(f"no answer from the browser (exit status {self._process.poll()})")
            self._buffer += received
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def look(self, *, width: int, height: int = 900, dark: bool = False, paper: bool = False) -> None:
        """Set the window's size, the preferred colours, and whether style sheets for print apply."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=scheme)

    def open(self, page: Path, ready: str = "true") -> None:
        """Load a file and wait until the JavaScript expression `ready` holds."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for(f"document.readyState === 'complete' && ({ready})")

    def wait_for(self, expression: str) -> None:
        """Ask until `expression` holds."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never came true: {expression}")
            time.sleep(0.05)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions, since the page was opened."""
        self.evaluate("0")  # what came until now
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(str(parameters["entry"]))
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        self.evaluate("0")
        asked = (event for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]
