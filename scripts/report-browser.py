#!/usr/bin/env python3
"""Opens a report of `trireme report` in headless Chromium, measures and photographs it, and fails on anything that a reader would mind.

  scripts/report-browser.py REPORT.html [--shot FILE.png] [--width W] [--height H] [--dark] [--no-script] [--within SECONDS] [--at CSS-SELECTOR]

--within SECONDS   fails if the page is not loaded and painted in this time
--at SELECTOR      photographs from this element on, with the cursor in its middle
--full             photographs the whole page

Fails if the page requests anything but itself, reports an error, or is wider than the window. Prints the measurements as one JSON object.
Chromium is found as chromium, chromium-browser or google-chrome; without one the exit code is 77.
"""
import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time


class Browser:
    """Chromium behind its debugging pipe: messages of JSON that end with a zero byte."""

    def __init__(self, program, profile):
        to_browser, self.out = os.pipe()
        self.input, from_browser = os.pipe()

        def descriptors():  # the pipe is fixed to 3 and 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None

    def receive(self):
        while b"\0" not in self.buffer:
            part = os.read(self.input, 1 << 20)
            if not part:
                raise SystemExit("report-browser: Chromium has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"report-browser: {method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method):
        for event in self.events:
            if event.get("method") == method:
                return event
        while True:
            event = self.receive()
            self.events.append(event)
            if event.get("method") == method:
                return event

    def value(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"report-browser: {expression}: {result['exceptionDetails']}")
        return result["result"].get("value")


READY = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"
# Every plot that is shown answers to the keyboard with a reading.
KEYBOARD = """(() => {
  const silent = [];
  for (const plot of document.querySelectorAll(".plot[data-plot]")) {
    if (plot.offsetParent === null) continue;
    plot.dispatchEvent(new KeyboardEvent("keydown", {key: "End", bubbles: true, cancelable: true}));
    const tip = plot.querySelector(".tip");
    if (!tip || !tip.textContent.trim()) silent.push(plot.getAttribute("aria-label").slice(0, 60));
    plot.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true}));
  }
  return silent;
})()"""


def examine(browser, arguments, url):
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Network", "Runtime", "Log"):
        browser.call(domain + ".enable")
    browser.call("Emulation.setDeviceMetricsOverride", width=arguments.width, height=arguments.height, deviceScaleFactor=arguments.scale, mobile=False)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if arguments.dark else "light"}])
    if arguments.no_script:
        browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.events.clear()
    began = time.monotonic()
    browser.call("Page.navigate", url=url)
    browser.wait_for("Page.loadEventFired")
    seconds = time.monotonic() - began
    report = {"file": arguments.report.name, "bytes": arguments.report.stat().st_size, "width": arguments.width, "load_seconds": round(seconds, 3)}
    failures = []
    if not arguments.no_script:
        report["painted_seconds"] = round(browser.value(READY) / 1000, 3)
        report["plots"] = browser.value("document.querySelectorAll('.plot[data-plot]').length")
        silent = browser.value(KEYBOARD)
        if silent:
            failures.append(f"no reading with the keyboard: {silent}")
    else:
        # Without the page's script this expression would not run either.
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    wide = browser.value("document.documentElement.scrollWidth")
    if wide > arguments.width:
        failures.append(f"the page is {wide} pixels wide in a window of {arguments.width}")
    if arguments.at:
        browser.value(f"document.querySelector({json.dumps(arguments.at)}).scrollIntoView(true)")
        place = browser.value(f"(r => [r.x + r.width * .62, r.y + r.height * .4])(document.querySelector({json.dumps(arguments.at)}).getBoundingClientRect())")
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
        browser.value("new Promise(done => setTimeout(done, 200))") if not arguments.no_script else time.sleep(0.2)
    if arguments.shot:
        picture = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=arguments.full,
                               **({"clip": {"x": 0, "y": 0, "width": arguments.width, "height": browser.value("document.documentElement.scrollHeight"),
                                            "scale": 1}} if arguments.full else {}))
        arguments.shot.write_bytes(base64.b64decode(picture["data"]))
    requests = [event["params"]["request"]["url"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    foreign = [request for request in requests if request != url and not request.startswith("data:")]
    report["requests"] = len(requests)
    if foreign:
        failures.append(f"requests: {foreign}")
    for event in browser.events:
        if event.get("method") == "Runtime.exceptionThrown":
            failures.append(f"exception: {event['params']['exceptionDetails'].get('text')} {event['params']['exceptionDetails'].get('exception', {}).get('description')}")
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
            failures.append(f"log: {event['params']['entry']['text']}")
    if arguments.within and report.get("painted_seconds", seconds) > arguments.within:
        failures.append(f"opened in {report.get('painted_seconds', seconds)} s, not within {arguments.within} s")
    print(json.dumps(report))
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--shot", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--no-script", action="store_true")
    parser.add_argument("--within", type=float)
    parser.add_argument("--at")
    arguments = parser.parse_args()
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not program:
        print("report-browser: Chromium is not installed", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            failures = examine(browser, arguments, arguments.report.resolve().as_uri())
        finally:
            browser.process.terminate()
            browser.process.wait()
    for failure in failures:
        print(f"report-browser: {arguments.report}: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
