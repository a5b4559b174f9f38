"""The report as a reader meets it: in a real Chromium, from a file, with mouse and keyboard."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gatherbench import outside
from gatherbench.bench.read.tables import load_run
from gatherbench.bench.run.store import write_timeline
from gatherbench.bench.show.report.page import write_report

from .conftest import WORKLOAD

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

MakeRun = Callable[..., Path]
OpenReport = Callable[..., "Page"]

REPO = Path(__file__).parents[4]
HOSTILE = "<script>document.title='hacked'</script>\"'><img src=x onerror=alert(1)>"
SERIES = [
    ("cpu_gather", "naive", 12.0),
    ("cpu_gather", "pinned", 9.0),
    ("aligned_zero_copy", "given", 0.8),
    ("all_in_gpu", "default", 0.5),
]
#: Reports that several tests look at: with a modelled series that has no baseline of its machine;
#: with all of them modelled, and a case that failed.
MODELLED = [("aligned_zero_copy", "given", 0.4)]
FAILED = ("async_zero_copy", "stream", 1.0)
WITH_MODEL: Any = {"modelled": SERIES, "failures": {FAILED[:2]: ("failed", "broken")}, "repeats": 1}


@pytest.fixture(scope="module")
def plain(report_of: MakeRun) -> Path:
    return report_of(SERIES, modelled=MODELLED)


@pytest.fixture(scope="module")
def with_model(report_of: MakeRun) -> Path:
    return report_of([*SERIES, FAILED], **WITH_MODEL)


def column(page: Page, table: str, head: str) -> list[str]:
    """The cells of the table's column whose head begins with ``head``, as they are read."""
    heads = page.locator(f"#{table} thead th").all_inner_texts()
    place = next(i for i, text in enumerate(heads) if text.startswith(head))
    return [
        t.strip()
        for t in page.locator(f"#{table} tbody td:nth-child({place + 1})").all_inner_texts()
    ]


def head_of(page: Page, table: str, head: str) -> Locator:
    return page.locator(f"#{table} thead th").filter(has_text=re.compile(f"^\\s*{head}"))


def saved_csv(page: Page, table: str) -> list[dict[str, str]]:
    with page.expect_download() as waiting:
        page.locator(f"#{table} .download").click()
    text = Path(waiting.value.path()).read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


#: Contrast of a text and the page behind it: WCAG 2.2, from the relative luminance of both. A
#: canvas turns any colour of CSS into bytes.
CONTRAST = """selector => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const bytes = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) =>
    .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const text = document.querySelector(selector);
  let behind = text, colour;
  do {
    colour = bytes(getComputedStyle(behind).backgroundColor);
    behind = behind.parentElement;
  } while (colour[3] === 0 && behind);
  const [a, b] = [light(bytes(getComputedStyle(text).color)), light(colour)];
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
}"""


def test_a_column_sorts_by_its_numbers_up_down_and_back(plain, open_report):
    page = open_report(plain)
    as_written = column(page, "numbers", "epoch")
    button = head_of(page, "numbers", "epoch").get_by_role("button").first
    button.click()
    up = column(page, "numbers", "epoch")
    assert up == sorted(as_written, key=float) != sorted(as_written)  # as texts 12.2 comes first
    assert head_of(page, "numbers", "epoch").first.get_attribute("aria-sort") == "ascending"
    button.click()
    assert column(page, "numbers", "epoch") == up[::-1]
    button.click()
    assert column(page, "numbers", "epoch") == as_written
    assert head_of(page, "numbers", "epoch").first.get_attribute("aria-sort") == "none"
    head_of(page, "numbers", "waiting").get_by_role("button").click()
    head_of(page, "numbers", "strategy").get_by_role("button").click()
    heads = page.locator("#numbers thead th")
    states = [heads.nth(i).get_attribute("aria-sort") for i in range(heads.count())]
    assert (states.count("ascending"), states.count("none")) == (1, len(states) - 1)
    assert page.get_by_role("status").inner_text() == "Sorted by strategy, ascending"


def test_what_is_missing_stays_last_both_ways(with_model, open_report):
    # Of the series that failed nothing is known.
    page = open_report(with_model)
    button = head_of(page, "numbers", "over the CPU").get_by_role("button")
    for _ in range(2):
        button.click()
        values = column(page, "numbers", "over the CPU")
        assert values[-1] == "–"
        assert "–" not in values[:-1]
    failed = [line for line in saved_csv(page, "numbers") if line["strategy"] == FAILED[0]]
    assert [line["best"] for line in failed] == [""]


def test_the_csv_holds_si_numbers_in_the_order_shown(plain, open_report):
    page = open_report(plain)
    head_of(page, "numbers", "epoch").get_by_role("button").first.click()
    lines = saved_csv(page, "numbers")
    assert [line["strategy"] for line in lines] == [
        "all_in_gpu", "aligned_zero_copy", "cpu_gather", "cpu_gather",
    ]  # fmt: skip
    assert float(lines[0]["epoch_s"]) == pytest.approx(0.5 * 1.015)
    assert float(lines[0]["rate_B_per_s"]) == pytest.approx(2e9 / (0.25 * 1.015), rel=1e-3)
    assert lines[0]["kind"] == "measured, host"


#: Names that a spreadsheet, a page or a reader might take for something else than text.
TURNED = "\u202edesrever \u0634\u0628\u0643\u0629"
REASON = 'says "no", then\tstops, ' + "z" * 10_000
STRANGE: Any = {
    "workloads": [f"{HOSTILE}-sage", "W" * 10_000],
    "dataset": HOSTILE,
    "failures": {
        ("cpu_gather", "pinned"): ("failed", f"</td></table>{HOSTILE}"),
        ("=cmd()", "+1"): ("failed", REASON),
    },
}


@pytest.fixture(scope="module")
def strange(report_of: MakeRun) -> Path:
    names = [("=cmd()", "+1"), ("x" * 10_000, HOSTILE), (HOSTILE, "x" * 10_000)]
    series = [(*both, 1.0) for both in [*names, (TURNED, "two\nlines")]]
    return report_of([*SERIES, *series], **STRANGE)


def test_a_spreadsheet_finds_no_formula_and_every_text_is_the_rows(strange, open_report):
    page = open_report(strange)
    problems = saved_csv(page, "problems")
    formulas = [one for one in problems if one["strategy"] != "cpu_gather"]
    assert [(one["strategy"], one["variant"]) for one in formulas] == [("'=cmd()", "'+1")] * 2
    assert {one["reason"] for one in formulas} == {outside.plain(REASON)}
    names = {(line["strategy"], line["variant"]) for line in saved_csv(page, "numbers")}
    assert (outside.plain("x" * 10_000), outside.plain(HOSTILE)) in names


def test_names_of_every_kind_stay_text(strange, open_report):
    page = open_report(strange, viewport={"width": 380, "height": 800})
    assert page.title() != "hacked"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.get_by_text("<script>document.title", exact=False).count() > 0
    assert HOSTILE in page.locator("#problems").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    # A name that is written from right to left does not turn the words around it.
    direction = page.locator("bdi", has_text="desrever").first
    assert direction.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_page_follows_the_system_and_the_button_turns_it(plain, open_report, system):
    page = open_report(plain, color_scheme=system)
    button = page.get_by_role("button", name="Dark")

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    at_first = background()
    assert button.get_attribute("aria-pressed") == str(system == "dark").lower()
    button.click()
    turned = background()
    assert turned != at_first
    assert button.get_attribute("aria-pressed") == str(system == "light").lower()
    page.reload()
    assert background() == turned  # remembered
    page.get_by_role("button", name="Dark").click()
    assert background() == at_first
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


@pytest.mark.parametrize("system", ["light", "dark"])
def test_text_stands_out_from_the_page(with_model, open_report, system):
    page = open_report(with_model, color_scheme=system)
    for selector in (
        "h1", ".run", "nav a", ".verdict li", "dt", ".caution", ".hint",
        ".chart figcaption p", ".variant", ".spread", ".why", ".tag", "th button", "td", "footer p",
        ".download", "tr.modelled td",
    ):  # fmt: skip
        assert page.evaluate(CONTRAST, selector) >= 4.5, selector


@pytest.mark.parametrize("width", [320, 380, 1280])
def test_no_width_needs_sideways_scroll_but_inside_tables(with_model, open_report, width):
    page = open_report(with_model, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inside = "element => element.scrollWidth > element.clientWidth"
    assert page.locator("#numbers .scroll").evaluate(inside) is True or width == 1280


def test_on_a_phone_a_number_stands_beside_what_it_is_of(with_model, open_report):
    page = open_report(with_model, viewport={"width": 400, "height": 800})
    row = page.locator("#numbers tbody tr", has_text="pinned").first
    row.locator("td").last.scroll_into_view_if_needed()
    names, number = row.locator("td").first, row.locator("td").last
    assert names.inner_text().split("\n")[1:] == ["cpu_gather", "pinned", "measured, host"]
    left, right = names.bounding_box(), number.bounding_box()
    assert left is not None
    assert right is not None
    assert 0 <= left["x"] < left["x"] + left["width"] <= right["x"] < right["x"] + 40 < 400
    assert saved_csv(page, "numbers")[0]["workload"] == WORKLOAD, "what sorts is the first name"
    page.set_viewport_size({"width": 1280, "height": 800})
    assert names.inner_text() == WORKLOAD


def test_a_caption_ends_within_its_table_at_every_width(with_model, open_report):
    ends = "span => [span, span.closest('.scroll')].map(e => e.getBoundingClientRect().right)"
    for width in (400, 1280, 1600):  # the page is no wider than 76rem
        page = open_report(with_model, viewport={"width": width, "height": 800})
        caption, table = page.locator("#numbers caption span").evaluate(ends)
        assert caption < table, width


def test_everything_is_reached_and_used_by_keyboard(plain, open_report):
    page = open_report(plain)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        label = page.evaluate("document.activeElement.textContent.trim()")
        reached.add(label)
        if label == "strategy":
            break
        visible = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(visible) != "none", label
    assert {"Download CSV", "strategy"} <= reached
    page.keyboard.press("Enter")
    assert column(page, "numbers", "strategy") == sorted(column(page, "numbers", "strategy"))
    page.keyboard.press("Space")
    assert column(page, "numbers", "strategy")[0] == "cpu_gather"


def test_headings_tables_and_drawings_have_names(with_model, open_report):
    page = open_report(with_model)
    levels = page.eval_on_selector_all("h1,h2,h3,h4", "all => all.map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = page.eval_on_selector_all("[id]", "all => all.map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert page.locator("table").count() == page.locator("table > caption").count() > 3
    nameless = "svg:not([aria-hidden=true]):not([role=img][aria-labelledby])"
    assert page.locator(nameless).count() == 0
    for link in page.eval_on_selector_all("nav a", "all => all.map(a => a.hash)"):
        assert page.locator(link).count() == 1, link
    line = page.locator("#stages-chart li.bar").first
    assert re.search(r"sample \S+ s, fetch \S+ s, train \S+ s", line.text_content() or "")


def test_modelled_bars_are_hatched_and_called_so(with_model, open_report):
    page = open_report(with_model)
    for bar in page.locator("li.bar").all():
        hatched = bar.locator("rect[fill='url(#hatch)']").count() > 0
        assert hatched == ("modelled" in bar.inner_text())
    assert page.locator("li.bar rect[fill='url(#hatch)']").count() > 0
    rows = page.locator("#predictions tbody tr.modelled")
    assert rows.count() == len(SERIES)
    assert all("modelled" in text for text in rows.all_inner_texts())
    assert page.locator("h4 .tag", has_text="modelled for h200-sxm-pcie5").count() == 2
    assert page.locator(".legend", has_text="hatched: modelled, not measured").count() == 2


def test_the_page_reads_the_same_without_its_script(plain, open_report):
    page = open_report(plain, java_script_enabled=False)
    assert page.locator("button").count() == 0
    assert page.locator("#numbers tbody tr").count() == len(SERIES)
    assert page.locator("#predictions tbody tr").count() == len(MODELLED)


def test_paper_gets_every_detail(report_of, open_report):
    page = open_report(report_of(SERIES[:1], workloads=[f"graph{i}" for i in range(8)], repeats=1))
    assert not page.locator("h4", has_text="graph7").first.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("h4", has_text="graph7").first.is_visible()
    assert not page.get_by_role("button", name="Download CSV").first.is_visible()


def test_tables_fit_on_paper(open_report, tmp_path):
    width = 703  # px of A4 between margins of 12 mm
    example = write_report(load_run(REPO / "results" / "example"), tmp_path / "report.html")
    page = open_report(example, viewport={"width": width, "height": 1000})
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_traffic_and_power_are_drawn_with_a_text_for_those_who_do_not_see_it(make_run, open_report):
    folder = make_run(SERIES, backend="cuda")
    shared = {"kind": "series", "workload": "wordnet-sage16x2-b1000-5f292758", "repeat": 0}
    shared |= {"strategy": "aligned_zero_copy", "variant": "given", "epoch": 0}
    bytes_ = [(0.0, 0.0), (0.4, 8e9), (0.8, 9e9)]
    records = [
        {**shared, "metric": "pcie_host_to_device", "unit": "B", "points": bytes_},
        {**shared, "metric": "gpu_power", "unit": "W", "points": [(0.4, 300.0), (0.8, 100.0)]},
    ]
    write_timeline(records, folder)
    path = write_report(load_run(folder), folder / "report.html")
    page = open_report(path, viewport={"width": 380, "height": 800})
    strip = page.locator("#traffic-chart li.strip")
    assert strip.count() == 1
    assert strip.locator("desc").text_content() == (
        "host to device: 11.2 GB/s in the mean, 20.0 GB/s at most, over 800 ms"
    )
    assert "mean" in strip.inner_text()
    assert page.locator("#power-chart li.strip desc").text_content() == (
        "power: 200 W in the mean, 300 W at most, over 800 ms"
    )
    others = page.locator("#traffic-chart li.missing").all_inner_texts()
    assert len(others) == len(SERIES) - 1
    assert all("nothing was polled" in text for text in others)
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert page.locator("svg:not([aria-hidden=true]):not([role=img][aria-labelledby])").count() == 0


def test_two_runs_stand_side_by_side_with_ratios(make_run, open_report):
    base = make_run([("cpu_gather", "naive", 2.0), ("aligned_zero_copy", "given", 0.8)], spread=0.0)
    broken = {("all_in_gpu", "default"): ("failed", HOSTILE)}
    series = [("cpu_gather", "naive", 2.0), ("aligned_zero_copy", "given", 0.4)]
    new = make_run([*series, ("all_in_gpu", "default", 0.5)], failures=broken, spread=0.0)
    path = write_report(load_run(new), new / "report.html", load_run(base))
    page = open_report(path, viewport={"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    lines = {(line["strategy"], line["variant"]): line for line in saved_csv(page, "against")}
    faster = lines["aligned_zero_copy", "given"]
    assert faster["verdict"] == "FAST"
    assert float(faster["ratio"]) == pytest.approx(0.5)
    assert float(faster["base"]) == pytest.approx(2 * float(faster["new"]))
    assert lines["cpu_gather", "naive"]["verdict"] == "SAME"
    assert lines["all_in_gpu", "default"]["verdict"] == "FAILED"
    bars = page.locator("#against-chart li.bar").all_inner_texts()
    assert any("0.500×" in text and "FAST" in text for text in bars)
    assert base.name in page.locator("#against-runs").inner_text()
