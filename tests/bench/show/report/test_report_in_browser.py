"""The report as a reader meets it: in a real Chromium, from a file, on a wide and a narrow page.

Of every page the fixture demands that it asks nobody for anything and puts nothing on the console.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gatherbench.bench.read.tables import load_run
from gatherbench.bench.show.page import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Page

MakeRun = Callable[..., Path]

REPO = Path(__file__).parents[4]
HOSTILE = "<script>document.title='hacked'</script>\"'><img src=x onerror=alert(1)>"
SERIES = [
    ("cpu_gather", "naive", 12.0),
    ("cpu_gather", "pinned", 9.0),
    ("aligned_zero_copy", "given", 0.8),
    ("all_in_gpu", "default", 0.5),
]
FAILED = ("async_zero_copy", "stream", 1.0)
WITH_MODEL: Any = {"modelled": SERIES, "failures": {FAILED[:2]: ("failed", "broken")}, "repeats": 1}
NARROW: Any = {"width": 400, "height": 800}


@pytest.fixture(scope="module")
def page_file(report_of: MakeRun) -> Path:
    return report_of([*SERIES, FAILED], **WITH_MODEL)


def column(page: Page, table: str, head: str) -> list[str]:
    """The cells of the table's column whose heading begins with ``head``."""
    heads = page.locator(f"#{table}-table thead th").all_inner_texts()
    place = next(i for i, text in enumerate(heads) if text.startswith(head))
    cells = page.locator(f"#{table}-table :is(td, th[scope=row]):nth-child({place + 1})")
    return cells.all_inner_texts()


def test_a_column_sorts_by_its_numbers_up_and_down(page_file, open_report):
    page = open_report(page_file)
    as_written = column(page, "predictions", "epoch")
    button = (
        page.locator("#predictions-table thead th").filter(has_text="epoch").get_by_role("button")
    )
    button.click()
    up = column(page, "predictions", "epoch")
    assert up == sorted(as_written, key=float) != sorted(as_written)  # as texts 12.0 comes first
    assert button.locator("..").get_attribute("aria-sort") == "ascending"
    button.press("Enter")
    assert column(page, "predictions", "epoch") == up[::-1]


def test_what_is_missing_stays_last_both_ways(page_file, open_report):
    page = open_report(page_file)
    head = page.locator("#numbers-table thead th").filter(has_text="over the CPU")
    for _ in range(2):
        head.get_by_role("button").click()
        values = column(page, "numbers", "over the CPU")
        assert values[-1] == "–"
        assert "–" not in values[:-1]


TURNED = "\u202edesrever \u0634\u0628\u0643\u0629"


def test_names_of_every_kind_stay_text_and_within_a_narrow_page(report_of, open_report):
    names = [("=cmd()", "+1"), ("x" * 10_000, HOSTILE), (HOSTILE, "x" * 10_000), (TURNED, "$x$")]
    path = report_of(
        [*SERIES, *((*both, 1.0) for both in names)],
        workloads=[f"{HOSTILE}-sage", "W" * 10_000],
        dataset=HOSTILE,
        failures={("cpu_gather", "pinned"): ("failed", f"</td></table></svg>{HOSTILE}")},
    )
    page = open_report(path, viewport=NARROW)
    assert page.title() != "hacked"
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert HOSTILE in page.locator("#problems-table").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    # A name that is written from right to left does not turn the words around it.
    direction = page.locator("bdi", has_text="desrever").first
    assert direction.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"


#: Contrast of a text and the page behind it: WCAG 2.2, from the relative luminance of both. A
#: canvas turns any colour of CSS into bytes.
CONTRAST = """element => {
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
  const style = getComputedStyle(element);
  const page = bytes(getComputedStyle(document.body).backgroundColor);
  const picture = element.closest("svg");
  const inverted = picture && getComputedStyle(picture).filter.startsWith("invert(0.9)");
  const known = [...bytes(picture ? style.fill : style.color)];
  const ink = known.map(c => inverted ? 229.5 - .8 * c : c);
  const [a, b] = [light(ink), light(page)];
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
}"""


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_page_is_readable_wide_and_narrow_light_and_dark(page_file, open_report, system, width):
    page = open_report(page_file, color_scheme=system, viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(251, 251, 250)", "dark": "rgb(17, 20, 24)"}[system]
    for selector in ("h1", ".soft", "nav a", ".answer li", ".caution", "figcaption p", "td",
                     "figure svg text", "footer p"):  # fmt: skip
        contrast = page.locator(selector).first.evaluate(CONTRAST)
        assert contrast >= 4.5, (selector, contrast)
    letters = page.locator("figure svg text").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert min(letters) >= 8


def test_the_report_of_the_example_runs_reads_well(open_report):
    page = open_report(REPO / "results" / "example" / "report.html", viewport=NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("figure svg").count() == page.locator("figure").count() > 3
    targets = page.locator("nav a").evaluate_all("all => all.map(one => one.hash.slice(1))")
    assert all(page.locator(f"section[id='{name}']").count() == 1 for name in targets)
    idents = page.locator("[id]").evaluate_all("all => all.map(one => one.id)")
    assert len(idents) == len(set(idents))


def test_a_workload_has_a_heading_and_is_sorted_alone(make_run, open_report):
    """a: 2 and 1 s, b: 4 and 3 s."""
    two = ["a-sage16x2-b1-0000000a", "b-sage16x2-b1-0000000b"]
    pairs = (("cpu_gather", (2.0, 4.0)), ("aligned_zero_copy", (1.0, 3.0)))
    series = [(name, "x", dict(zip(two, times, strict=True))) for name, times in pairs]
    run = load_run(make_run(series=series, workloads=two, spread=0.0))
    page = open_report(write_report(run, run.folder / "report.html"))
    table = page.locator("#numbers-table")
    table.get_by_role("button", name="epoch, s", exact=True).click()
    lines = table.locator("tbody tr").all_inner_texts()
    assert [line.split("\t")[0].strip() for line in lines] == [
        run.names[two[0]], "aligned_zero_copy (x)", "cpu_gather (x)",
        run.names[two[1]], "aligned_zero_copy (x)", "cpu_gather (x)",
    ]  # fmt: skip


def test_two_runs_stand_side_by_side_with_ratios(make_run, open_report):
    base = make_run([("cpu_gather", "naive", 2.0), ("aligned_zero_copy", "given", 0.8)], spread=0.0)
    broken = {("all_in_gpu", "default"): ("failed", HOSTILE)}
    series = [("cpu_gather", "naive", 2.0), ("aligned_zero_copy", "given", 0.4)]
    new = make_run([*series, ("all_in_gpu", "default", 0.5)], failures=broken, spread=0.0)
    path = write_report(load_run(new), new / "report.html", load_run(base))
    page = open_report(path, viewport=NARROW)
    verdicts = zip(column(page, "against", "path"), column(page, "against", "verdict"), strict=True)
    assert dict(verdicts) == {
        "cpu_gather (naive)": "SAME", "aligned_zero_copy": "FAST", "all_in_gpu": "FAILED",
    }  # fmt: skip
    assert "0.500× FAST" in page.locator("figure#against").text_content()
    assert base.name in page.locator("#against-runs-table").inner_text()
