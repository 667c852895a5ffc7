"""The page in a real browser: live, in both themes, on a phone, for a screen reader, whatever a
sample is called.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaderd_testing.daemon_harness import Site
from loaderd_testing.deadlines import DEADLINE_S
from loaderd_testing.ports import reserved_port
from server.test_status_report import STATUS as FULL

HOSTILE = "<img src=x onerror=document.title='hurt'>"
CODE = """
def picky(sample, rng):
    if int(sample["image"][0, 0, 1]) > 200:
        raise ValueError("too <b>green</b>")
    return sample
"""
CONFIG = """
[daemon]
socket = "d.sock"
metrics = "127.0.0.1:{port}"
[workers]
num_workers = 1
[streams.train]
lmdb = "db"
batch_size = 8
on_error = "replace"
[[streams.train.transforms]]
call = "code:picky"
"""
RED, GREEN = (250, 0, 0), (0, 250, 0)
# what reaches beyond the screen, but for what can be scrolled sideways
WIDER = """() => [...document.body.querySelectorAll("*")].filter((each) =>
  !each.parentElement.closest(".scroll") && each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.outerHTML.slice(0, 200))"""
# how the page shows the workers of a status
WORKERS = """(status) => { workers(status.workers, status.pool.remote);
  return [at("remote").textContent, [...at("workers").rows].map((row) => [...row.cells].map((cell) => cell.textContent))]; }"""
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def pack(folder: Path) -> None:
    """16 images of a hostile class, of which one is green."""
    from loaderd.data.packing.inputs import pack_imagefolder

    for number in range(16):
        path = folder / "src" / HOSTILE / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.full((40, 60, 3), GREEN if number == 1 else RED, np.uint8)
        Image.fromarray(pixels).save(path)
    pack_imagefolder(str(folder / "src"), str(folder / "db"))


def read_everywhere(page: Any) -> None:
    """In both themes and on a phone, by axe as well."""
    from axe_playwright_python.sync_playwright import Axe

    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    audit = Axe()
    found = [audit.run(page)]
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    found.append(audit.run(page))
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400, page.evaluate(WIDER)
    found.append(audit.run(page))
    for result in found:
        assert result.violations_count == 0, result.generate_report()
    folder = os.environ.get("LOADERD_SCREENSHOTS")  # for whoever wants to look
    if folder:
        page.screenshot(path=os.path.join(folder, "phone-dark.png"), full_page=True)
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 1200, "height": 900})
        page.screenshot(path=os.path.join(folder, "light.png"), full_page=True)


@pytest.mark.needs("chromium")
def test_the_page_is_live_readable_everywhere_and_believes_no_sample(
    site: Site, tmp_path: Path
) -> None:
    from playwright.sync_api import expect, sync_playwright

    pack(tmp_path)
    (tmp_path / "code.py").write_text(CODE)
    wrong: list[str] = []
    with reserved_port() as port, sync_playwright() as driver:
        site.config.write_text(CONFIG.format(port=port))
        site.serve()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        context = browser.new_context(color_scheme="light", viewport={"width": 1200, "height": 900})
        context.set_default_timeout(DEADLINE_S * 1000)
        expect.set_options(timeout=DEADLINE_S * 1000)
        page = context.new_page()
        page.on("console", lambda said: wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#verdict")).to_have_text("No trainer is attached.")
        expect(page.locator("#groups-section")).to_be_hidden()
        batches = iter(site.loader())
        kept = [next(batches)]
        # live: nobody has loaded the page again
        expect(page.locator("#verdict")).to_contain_text("starting")
        expect(page.locator("#sessions tbody tr")).to_have_count(1)
        expect(page.locator("#workers tbody tr")).to_have_count(1)
        expect(page.locator("#bad tbody tr").first).to_contain_text("too <b>green</b>")
        stored = page.locator("#bad tbody img").first
        expect(stored).to_have_attribute("alt", f"What is stored of {HOSTILE}/01.png")
        assert stored.evaluate("each => each.decode().then(() => each.naturalWidth)") == 60
        expect(page.locator("#seen canvas")).to_have_count(8)
        expect(page.locator("#seen li").first).to_contain_text(HOSTILE)
        middle = (
            "() => [...document.querySelector('#seen canvas').getContext('2d')"
            ".getImageData(30, 20, 1, 1).data]"
        )
        assert page.evaluate(middle) == [*RED, 255]
        assert page.title() != "hurt"
        shares = iter(site.loader(shared=True))
        kept.append(next(shares))
        expect(page.locator("#groups tbody tr")).to_have_count(1)
        remote, workers = page.evaluate(WORKERS, json.loads(FULL.to_json()))
        assert remote == "32 remote workers, 1 at work: node far-8: it is refused"
        assert workers[0][:3] == ["Worker", "Node", "State"]
        assert [row[:3] for row in workers[1:]] == [
            ["1", "", "up"], ["2", "", "starting"], ["3", "far-7", "up"], ["4", "?", "starting"]
        ]  # fmt: skip
        expect(page.locator("#remote")).to_be_hidden()  # the daemon's own status has come
        read_everywhere(page)
        assert wrong == []
        site.close()  # an error of the connection is the browser's own line
        expect(page.locator("#about")).to_contain_text("does not answer")
        browser.close()
    assert len(kept) == 2
