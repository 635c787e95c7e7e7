"""The page in a real browser: nothing in the console, nothing on the network, tables sort, hostile text runs nothing."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HOSTILE = "<script>window.owned=1</script><img src=x onerror='window.owned=1'><svg onload='window.owned=1'>"
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe"
)


class Browser:
    """Chromium over its debugging pipe (file descriptors 3 and 4, JSON ended by NUL)."""

    def __init__(self, program: str, profile: Path) -> None:
        read_commands, self._write = os.pipe()
        self._read, write_answers = os.pipe()
        command = f'exec "{program}" {FLAGS} --user-data-dir="{profile}" 3<&{read_commands} 4>&{write_answers}'
        self._child = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(read_commands, write_answers), stderr=subprocess.DEVNULL
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "no answer from the browser in 60 seconds"
            part = os.read(self._read, 65536)
            assert part, "the browser is gone"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, page: Path) -> None:
        """Load a page and wait until it is complete."""
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        for _ in range(300):
            if self.value("document.readyState") == "complete" and self.value("location.protocol") == "file:":
                return
            time.sleep(0.1)
        raise AssertionError("page did not load")

    def value(self, expression: str) -> Any:
        """Evaluate JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, and exceptions."""
        found = []
        for event in self.events:
            data = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(data["exceptionDetails"]))
            if event.get("method") == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning"):
                found.append(str(data["args"]))
            if event.get("method") == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
                found.append(str(data["entry"]))
        return found

    def requests(self) -> list[str]:
        """Return addresses of all requests but inline data."""
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]

    def close(self) -> None:
        """End the browser."""
        self._child.terminate()
        self._child.wait(20)
        os.close(self._write)
        os.close(self._read)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(
        (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n)) is not None), None
    )
    if program is None and os.environ.get("CI") == "true":
        pytest.fail("expected Chromium on PATH, as these tests must run in CI; install chromium")
    if program is None:
        pytest.skip("no Chromium on PATH")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def hostile_page(fake_run: Callable[..., Any], report: Callable[..., Any]) -> Path:
    made = fake_run(arms={"baseline": 0.0, "worse": 0.05}, seeds=(1, 2), hostile=HOSTILE, documents=40)
    folder: Path = report(made.inputs, run_name=HOSTILE, config_yaml=f"run: {HOSTILE}\n")[0]
    return folder / "report.html"


def test_hostile_text_runs_nothing_and_nothing_is_loaded(browser: Browser, hostile_page: Path) -> None:
    browser.open(hostile_page)
    browser.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    time.sleep(0.5)
    assert browser.value("window.owned === undefined")
    assert browser.value("document.scripts.length") == 1
    assert browser.value("document.title") == HOSTILE
    assert browser.complaints() == []
    assert browser.requests() == [hostile_page.as_uri()]


def test_tables_sort_by_number_and_by_text(browser: Browser, hostile_page: Path) -> None:
    browser.open(hostile_page)
    column = "[...document.querySelector('#provenance table').tBodies[0].rows].map((r) => {})"
    click = "document.querySelector('#provenance thead').rows[0].cells[{}].querySelector('button').click()"
    for index, read in ((0, "r.cells[0].textContent.trim()"), (5, "Number(r.cells[5].dataset.v)")):
        browser.value(click.format(index))
        up = browser.value(column.format(read))
        browser.value(click.format(index))
        down = browser.value(column.format(read))
        assert len(set(up)) > 1
        assert down != up
        if index == 5:
            assert up == sorted(up)
            assert down == sorted(up, reverse=True)
    assert browser.value("document.querySelector('th[aria-sort=descending]') !== null")
    assert browser.complaints() == []


def test_tables_filter(browser: Browser, hostile_page: Path) -> None:
    browser.open(hostile_page)
    browser.value(
        "(() => { const i = document.querySelector('#provenance input'); i.value = 'pretraining(0-200)';"
        " i.dispatchEvent(new Event('input')); })()"
    )
    shown = browser.value("[...document.querySelectorAll('#provenance tbody tr')].filter((r) => !r.hidden).length")
    assert shown >= 4  # two arms at two seeds, and whatever was made from them
    assert shown < browser.value("document.querySelectorAll('#provenance tbody tr').length")


def test_charts_answer_the_pointer(browser: Browser, hostile_page: Path) -> None:
    browser.open(hostile_page)
    browser.value(
        "document.querySelector('#training svg.chart').scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    box = browser.value(
        "(() => { const b = document.querySelector('#training svg.chart').getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    time.sleep(0.3)
    tip = browser.value("document.querySelector('#training .tip').innerText")
    step, value = int(tip.split()[1]), float(tip.split("baseline")[1].split()[0])
    assert 200 < step < 400  # the middle of 600 steps
    report = json.loads((hostile_page.parent / "report.json").read_text())
    curves = [t["curves"]["loss"] for t in report["training"] if t["variant"].startswith("baseline,")]
    mean = sum(c["values"][c["steps"].index(step)] for c in curves) / len(curves)
    assert value == pytest.approx(mean, abs=1e-3)
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_its_window(browser: Browser, hostile_page: Path, width: int) -> None:
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)
    browser.open(hostile_page)
    assert browser.value("document.documentElement.scrollWidth") <= width
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_links_to_artefacts_lead_somewhere(browser: Browser, hostile_page: Path) -> None:
    browser.open(hostile_page)
    lost = browser.value(
        "[...document.querySelectorAll('a[href^=\"#\"]')].map((a) => a.hash.slice(1))"
        ".filter((id) => document.getElementById(id) === null)"
    )
    assert lost == []
