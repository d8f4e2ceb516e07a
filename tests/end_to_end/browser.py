"""A headless Chromium that a test can drive: DevTools over a pipe, nothing installed.

Messages are JSON, each ended by a zero byte, on the file descriptors 3 and 4 of the
browser (`--remote-debugging-pipe`). Nothing listens on a port.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    # Refused otherwise where the tests run as root.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # Every name leads nowhere: what loads at all was in the file.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
_PATIENCE = 240.0
"""Seconds: a browser starts in one or two, but machines that test may be busy."""


def executable() -> str | None:
    """Returns the path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Page:
    """A page in a browser, and everything it complained of or asked for.

    Attributes:
        complaints: errors of the console, exceptions, and failed requests.
        requests: addresses that were asked for.
    """

    read: Any
    write: Any
    session: str = ""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _number: int = 0
    _rest: bytes = b""
    _loaded: bool = False

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the answer to a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert time.monotonic() < until, "the browser does not answer"
            try:
                data = os.read(self.read, 1 << 16)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            assert data, "the browser has ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Network.loadingFailed":
            self.complaints.append(f"request failed: {event}")
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {event['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled" and event["type"] == "error":
            self.complaints.append(f"console: {event['args']}")
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.complaints.append(f"log: {event['entry']}")

    def open(self, file: Path) -> None:
        """Opens a file and waits until it is loaded."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self._loaded = False
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=file.absolute().as_uri())
        until = time.monotonic() + _PATIENCE
        while not self._loaded:
            self._receive(until)

    def value(self, expression: str) -> Any:
        """Returns the value of an expression of JavaScript."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Presses and releases a key as a keyboard would."""
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        typed = {"text": text} if text else {}
        kind = "keyDown" if text else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=kind, **about, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Makes the window as wide and high as asked, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        """Lets the reader prefer `light` or `dark`."""
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def picture(self) -> bytes:
        """Returns a PNG of what the window shows."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """Starts a browser with an empty profile, and ends it.

    Args:
        program: of Chromium.
        profile: a folder of its own; made if absent.
    """
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()
    os.set_blocking(read, False)
    # The shell puts the pipes where the browser looks for them.
    line = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", line, "bash", *command],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(read, write)
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
        page.session = attached["sessionId"]
        yield page
    finally:
        process.kill()
        process.wait()
        os.close(read)
        os.close(write)
