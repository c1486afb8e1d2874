"""Headless Chromium, driven over its debugging pipe; needs no package but the browser.

Protocol: https://chromedevtools.github.io/devtools-protocol/. Messages are JSON, each ended by a
zero byte; the browser reads them from file descriptor 3 and answers on 4.
"""

import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factories.waiting import WAIT_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # it cannot be set up by root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "ArrowRight": 39, " ": 32}
_FIRST_FREE_FD = 10


class Browser:
    """One process; pages share it. Messages are read while an answer is waited for."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._buffer = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def send(
        self, method: str, session: str | None = None, timeout_s: float = WAIT_S, **params: Any
    ) -> Any:
        """Return the result of a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        number, until_s = self._number, time.monotonic() + timeout_s
        while number not in self._answers:
            assert time.monotonic() < until_s, f"{method} was not answered"
            self._read()
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        return answer["result"]

    def _read(self) -> None:
        data = os.read(self._read_fd, 1 << 20)
        assert data, "the browser has ended"
        *whole, self._buffer = (self._buffer + data).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self._pages.get(message.get("sessionId", "")):
                page.note(message["method"], message["params"])

    def open_page(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """Open an empty page."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, attached["sessionId"], context)
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.look(width=width, height=height, dark=dark)
        return page


@dataclass
class Page:
    """One tab, in a profile of its own."""

    browser: Browser
    session: str
    context: str
    errors: list[str] = field(default_factory=list)
    """What the console complained about, failed connections left out."""

    def send(self, method: str, **params: Any) -> Any:
        return self.browser.send(method, self.session, **params)

    def note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str([one.get("value") for one in params["args"]]))
        elif method == "Log.entryAdded":
            entry = params["entry"]
            if entry["level"] == "error" and "net::ERR_" not in entry["text"]:
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    def look(self, *, width: int, height: int, dark: bool = False) -> None:
        """Set the window and the colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def goto(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression: str) -> Any:
        """Return the value of an expression, or what its promise comes to."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true of the page."""
        until_s = time.monotonic() + WAIT_S
        while not self.js(f"!!({condition})"):  # an element would come as an empty object
            assert time.monotonic() < until_s, f"never true: {condition}"
            time.sleep(0.05)

    def wait_for_text(self, selector: str, *words: str) -> None:
        """Wait until an element's text has all of these words in it."""
        text = f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"
        self.wait_for(f"{json.dumps(words)}.every((it) => ({text}).includes(it))")

    def text(self, selector: str) -> str:
        return str(self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def hover(self, selector: str, share: float) -> None:
        """Move the pointer onto an element, at this share of its width."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.js(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.js(
            "(({x, y, width, height}) => ({x, y, width, height}))"
            f"({place}.getBoundingClientRect())"
        )
        x = box["x"] + min(max(share * box["width"], 1.0), box["width"] - 1.0)
        y = box["y"] + box["height"] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def type(self, selector: str, text: str) -> None:
        """Replace what a field holds, as a person would."""
        self.js(f"document.querySelector({json.dumps(selector)}).select()")
        self.js(f"document.querySelector({json.dumps(selector)}).focus()")
        self.send("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code = _KEYS[key]
        for kind in ("rawKeyDown", "char", "keyUp") if key == "Enter" else ("rawKeyDown", "keyUp"):
            extra = {"text": "\r"} if key == "Enter" else {}
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **extra,
            )

    def hide(self, selector: str) -> None:
        """Show the page as if what is selected were not there."""
        self.js(
            f"document.querySelectorAll({json.dumps(selector)}).forEach((it) => it.hidden = true)"
        )

    def screenshot(self, path: Path, *, last: str) -> None:
        """Write the page from its top to the end of an element, as the name's ending says."""
        box = f"document.querySelector({json.dumps(last)}).getBoundingClientRect()"
        size = {
            "width": self.js("document.documentElement.clientWidth"),
            "height": self.js(f"{box}.bottom + scrollY"),
        }
        shot = self.send(
            "Page.captureScreenshot",
            format=path.suffix.removeprefix("."),
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "scale": 1, **size},
        )
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start Chromium, which must be there; end it whatever happens."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = _pipe()
        ours_in, theirs_out = _pipe()
        pid = os.posix_spawn(
            CHROMIUM,
            [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            {**os.environ, "HOME": profile},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs_in, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
            setpgroup=0,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_in, ours_out)
        finally:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(ours_in)
            os.close(ours_out)


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends are not where the browser expects its own."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_FD) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
