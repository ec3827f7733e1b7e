"""Use a page in headless Chromium as a person would, by the DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import pytest

_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--lang=en", "--remote-debugging-pipe"),
)
_KEYS = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, " ": 32}
_CONTROL = 2
WATCH_AFTER = 180.0

TRIED = "document.querySelector('.heat') && !document.getElementById('run').disabled"
"""When the page of the server has shown a map, and takes the next texts."""


def chromium() -> str:
    """Return the program; skip where it is not installed."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("chromium is not installed; apt-get install --no-install-recommends chromium")
    return found


class Browser:
    """Runs Chromium with one page until the block ends."""

    def __init__(self, profile: Path) -> None:
        self.messages: list[str] = []  # of the console, exceptions and violations of the policy
        self.requests: list[str] = []  # of the page that is open
        self.bytes = 0  # that came for it over the network
        self._loads = 0
        self._number, self._rest, self._session = 0, b"", ""
        inner_read, self._write = os.pipe()
        self._read, inner_write = os.pipe()
        pipes = f'exec "$0" "$@" 3<&{inner_read} 4>&{inner_write}'
        words = chromium(), *_FLAGS, f"--user-data-dir={profile}", "about:blank"
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(["bash", "-c", pipes, *words], pass_fds=(inner_read, inner_write), **quiet)
        os.close(inner_read)
        os.close(inner_write)

    def __enter__(self) -> Self:
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(one for one in targets if one["type"] == "page")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.see(1280, 900)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(WATCH_AFTER)
        os.close(self._read)
        os.close(self._write)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._received()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self._note(answer)

    def _received(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], WATCH_AFTER)[0], "the browser says nothing"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.loadingFinished":
            self.bytes += round(params["encodedDataLength"])
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(one.get("value")) for one in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.messages.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Log.entryAdded" and params["entry"]["source"] != "network":
            self.messages.append(params["entry"]["text"])

    def see(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the window, and light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address: str) -> None:
        """Open an address, and wait until it is loaded."""
        for place in ("about:blank", address):  # else another fragment of the same page would load nothing
            self.requests, self.bytes, before = [], 0, self._loads
            self.send("Page.navigate", url=place)
            while self._loads == before:
                self._note(self._received())

    def value(self, expression: str) -> Any:
        """Return the value of an expression, or of its promise."""
        done = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of the first element, as it is seen."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + WATCH_AFTER
        while not self.value(f"Boolean({expression})"):
            page = "document.body.innerText.slice(0, 3000)"
            assert time.monotonic() < end, f"never: {expression}; {self.value(page)}; {self.messages}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click on the first element."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{place}.scrollIntoView({{ block: 'center' }})")
        box = self.value(
            f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])({place}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, name: str, control: bool = False) -> None:
        """Press a key, and let it go."""
        about = {"key": name, "code": name, "windowsVirtualKeyCode": _KEYS[name], "modifiers": _CONTROL * control}
        text = {"text": {"Enter": "\r", " ": " "}[name]} if name in ("Enter", " ") and not control else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def write(self, selector: str, text: str) -> None:
        """Put text in the place of what a field holds, as if it was pasted."""
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        if text:
            self.send("Input.insertText", text=text)
        else:
            self.value("document.execCommand('delete')")

    def picture(self, file: Path, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page."""
        taken = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(taken["data"]))
