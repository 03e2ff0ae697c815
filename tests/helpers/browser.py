"""A real Chromium without a window, spoken to over its debugging pipe (the DevTools protocol; messages end in a zero byte)."""

import contextlib
import json
import os
import shutil
import subprocess
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_PATIENCE = 60.0  # seconds


class Page:
    """One page. `messages` is all that it wrote to the console, and what went wrong in it."""

    def __init__(self, to_browser, from_browser):
        self._to, self._from = to_browser, from_browser
        self._number, self._rest, self._session = 0, b"", None
        self.messages, self._events = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._number += 1
        number, message = self._number, {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self):
        deadline = time.monotonic() + _PATIENCE
        while b"\0" not in self._rest:
            assert time.monotonic() < deadline
            part = os.read(self._from, 2**20)
            assert part, "the browser is gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        method = message.get("method")
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(message["params"])[:500])
        self._events.append(method)
        return message

    def open(self, url):
        """Until the page is loaded."""
        self._events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._read()

    def evaluate(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression):
        """Until the expression is truthy; returns it."""
        deadline = time.monotonic() + _PATIENCE / 3
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, expression
            time.sleep(0.02)
        return value

    def press(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def look(self, width, height, theme):
        """Set the size of the page and the theme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        media = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)


@contextlib.contextmanager
def open_browser(profile):
    """A page of a new browser, whose profile lies in this folder."""
    out, to_browser = os.pipe()
    from_browser, back = os.pipe()
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}"]  # it reads descriptor 3 and writes 4
    shell = ["sh", "-c", f'exec "$@" 3</proc/self/fd/{out} 4>/proc/self/fd/{back}', "sh", CHROMIUM]
    process = subprocess.Popen([*shell, *flags], pass_fds=(out, back), stderr=subprocess.DEVNULL)
    os.close(out)
    os.close(back)
    try:
        yield Page(to_browser, from_browser)
    finally:
        os.close(to_browser)  # it ends with its pipe
        os.close(from_browser)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
