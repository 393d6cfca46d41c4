"""The page as it is seen: in headless Chromium, without a network, as wide as a desk and as a phone, bright, dark, printed."""

import csv
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fedgraph_flwr.report.listing import write_listing
from fedgraph_flwr.report.sweep_page import write_sweep
from tests.party.desk import write_pages
from tests.support import PATIENCE, write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install -e .[dev])")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine (apt-get install chromium)")

QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

OVERLAPS = Path(__file__).with_name("overlaps.js").read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        playwright.expect.set_options(timeout=1000 * PATIENCE)
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), timeout=1000 * PATIENCE)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """Of one run, and of two methods by two seeds, with what is found beside them."""
    out = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(runs / "data"))
        several = [runs / f"{method}-{seed}" for method in ("fedavg", "fedprox") for seed in (0, 1)]
        write_report([runs / "fedavg-0"], out / "one.html", baselines=False)
        write_report(several, out / "several.html")
        write_sweep(_outcome(runs), out / "sweep.csv")
        write_listing(runs, out / "runs.html")
    write_pages(out)
    return out


def _outcome(runs):
    """Of a sweep of two rows and four columns, whose runs were kept."""
    cells = [
        {
            "setting": f"share of labels {share}",
            "method": method,
            "choice": "lr 0.1" if method == "FedAvg" else "",
            "scores": {0: 80.0 + place, 1: 81.5 + place * share},
            **{"mean": 80.75 + place, "half": 1.5, "n": 2},
            "difference": {"mean": place - 1.0, "half": 0.7, "n": 2} if method != "Local" else None,
            **({"seconds_per_round": 0.1 * (place + 1), "bytes": 1e6 * place} if method != "Majority" else {}),
            "runs": [str(runs / f"{method.lower()}-{seed}") for seed in (0, 1) if method in ("FedAvg", "FedProx")],
        }
        for share in (0.05, 0.6)
        for place, method in enumerate(("Majority", "Local", "FedAvg", "FedProx"))
    ]
    text = {
        "title": "A sweep",
        "source": "",
        "command": "fedgraph-flwr sweep strategy=fedavg,fedprox",
        "headline": "accuracy",
    }
    said = ["share of labels 0.05: FedProx ahead of Local by 2.0 ± 0.7, 2 of 2 seeds"]
    return {
        **text,
        "percent": True,
        "reference": "Local",
        "verdicts": said,
        "cells": cells,
        "failures": [{"run": "a", "reason": "b"}],
    }


@pytest.fixture
def opened(browser, pages):
    """``opened(name, width, scheme)`` gives the page, and all that it said on the console or asked of a network."""
    contexts = []

    def open_(name, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith("file:") else said.append(request.url))
        page.goto(f"file://{pages / name}")
        page.wait_for_selector("html[data-drawn]", timeout=1000 * PATIENCE)
        return page, said

    yield open_
    for context in contexts:
        context.close()


def shown(place):
    """Assertions that wait: a chart draws in the browser's next frame, which a busy machine delays."""
    return playwright.expect(place)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize(
    "name",
    ["sweep.html", "runs.html", "one.html", "several.html", "alerts.html", "drift.html", "explain.html", "worth.html"],
)
def test_nothing_overlaps_or_overflows_and_the_console_is_silent(opened, name, width, scheme):
    page, said = opened(name, width, scheme)
    assert page.evaluate(OVERLAPS) == []
    assert said == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 100")
    assert dark == (scheme == "dark")


def test_a_key_hides_its_series_and_a_column_sorts(opened):
    page, said = opened("several.html")
    curves = page.locator("#training .chart").first
    drawn = curves.locator('path[stroke-width="2.2"]')
    shown(drawn).to_have_count(2)
    page.locator("#training .keys button").first.click()
    shown(drawn).to_have_count(1)
    head = page.locator("#compared th button", has_text="test accuracy").first
    column = "table => [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[2].textContent))"
    table = page.locator("#compared table").first
    head.click()
    rising = table.evaluate(column)
    assert rising == sorted(rising)
    head.click()
    assert table.evaluate(column) == sorted(rising, reverse=True) != rising
    page.locator("#training select").first.select_option(label="loss")
    shown(curves).to_contain_text("loss")
    assert said == []


def test_a_hover_tells_the_figure(opened):
    page, said = opened("one.html")
    chart = page.locator("#training .chart").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown(page.locator(".chart > div", has_text="round 2").first).to_be_attached()
    assert said == []


def test_the_button_turns_the_page_dark_and_paper_is_white(opened):
    page, said = opened("one.html", scheme="light")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    bright = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate(ground) != bright
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.evaluate(
        "[...document.querySelectorAll('.chart svg')].every((svg) => svg.getBoundingClientRect().width <= 680)"
    )
    assert len(page.pdf()) > 10_000
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert said == []


def test_without_a_script_the_answer_and_the_tables_are_there(browser, pages):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(f"file://{pages / 'one.html'}")
    assert "FedAvg reaches" in page.locator(".answer").inner_text()
    assert page.locator("#clients tbody tr").count() == 3
    context.close()


def test_a_chart_is_saved_as_picture_and_table(opened):
    page, said = opened("sweep.html")

    def saved(kind):
        with page.expect_download() as waiting:
            page.locator(".card .save", has_text=kind).first.click()
        assert waiting.value.suggested_filename == f"Test accuracy.{kind.lower()}"
        return Path(waiting.value.path()).read_bytes()

    ElementTree.fromstring(saved("SVG"))
    assert b"FedProx" in saved("SVG")
    assert saved("PNG").startswith(b"\x89PNG")
    rows = list(csv.DictReader(saved("CSV").decode().splitlines()))
    means = {row["name"]: float(row["value"]) for row in rows if row["what"] == "mean" and row["view"].endswith("0.6")}
    assert means == pytest.approx({"Majority": 0.8075, "Local": 0.8175, "FedAvg": 0.8275, "FedProx": 0.8375})
    assert len(rows) == 2 * 4 * 3  # views, methods, mean and two seeds
    assert said == []


def test_a_phone_shows_reasons_below_their_alert(opened):
    page, _ = opened("alerts.html", width=390)
    row = page.locator("table.stacked tbody tr").first
    cells = row.locator("td").evaluate_all("cells => cells.map((cell) => cell.getBoundingClientRect().toJSON())")
    assert all(first["bottom"] <= second["top"] + 1 for first, second in pairwise(cells))
    assert row.locator("td").last.get_attribute("data-name") == "reasons"
