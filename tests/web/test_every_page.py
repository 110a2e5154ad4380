"""Every kind of page at every width, light and dark, and on paper: nothing is cut off, tables and charts keep their heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import LiveServer
from fake_study import drawn_study
from run_folders import drawn_rows, lock_as, write_drawn_seeds, write_fake_run, write_watched

from glassloop.report.build import report_of
from glassloop.report.comparison import compare_runs, comparison_page
from glassloop.report.study import study_page
from glassloop.runs.study import read_study, write_study
from glassloop.settings.training import CLASSES, SCORE, SEVERAL
from glassloop.study.conclusions import conclude

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS = (1200, 768, 390)
TASKS = {"classes": (CLASSES, 2), "four": (CLASSES, 4), "many": (CLASSES, 1_000), "several": (SEVERAL, 6), "scores": (SCORE, 1)}
LIVE = ("", "run/classes", "run/training", "run/seeds", "run/study", "compare?run=classes&run=training")

# What reaches beyond the right edge and cannot be scrolled to; charts may draw a little beyond their own box.
CUT = """() => [...document.querySelectorAll('header *, main *')].filter(part => {
  const box = part.getBoundingClientRect();
  return box.width && box.right > document.documentElement.clientWidth + 1 && !part.closest('.scroll, svg');
}).map(part => part.outerHTML.slice(0, 100))"""
# Tables in the open that are wider than their place.
WIDE = """() => [...document.querySelectorAll('main .scroll')].filter(part => part.scrollWidth > part.clientWidth + 1
  && !part.closest('details:not([open])'))
  .map(part => part.textContent.slice(0, 80))"""
# Texts of charts that are smaller than eight pixels.
TINY = """() => [...document.querySelectorAll('svg.plot')].flatMap(plot => {
  const scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
  return [...plot.querySelectorAll('text')].filter(text => {
    const style = getComputedStyle(text);
    return style.display !== 'none' && text.getBoundingClientRect().width && parseFloat(style.fontSize) * scale < 8; });
}).map(text => text.textContent)"""
# Marks of charts whose box is not within that of their SVG, and boxes of zero size.
STRAYS = """() => [...document.querySelectorAll('.plot')].flatMap(plot => {
  const frame = plot.getBoundingClientRect(), far = 2;
  const marks = [...plot.querySelectorAll('.line,.raw,.band,.bar,.dot,.point,.whisker,.cell,.hit,.dashed,.event')];
  const outside = marks.filter(mark => { const box = mark.getBoundingClientRect();
    return box.left < frame.left - far || box.right > frame.right + far
      || box.top < frame.top - far || box.bottom > frame.bottom + far; });
  return marks.length ? outside.map(mark => mark.outerHTML.slice(0, 120)) : ['no marks: ' + plot.textContent.slice(0, 60)];
})"""
# The lowest contrast of any visible text with the paper of the page.
CONTRAST = """() => {
  const light = color => { const parts = color.match(/[\\d.]+/g).slice(0, 3).map(Number).map(part => part / 255)
    .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll('main :not(svg, svg *), svg text:not(.cells *)')].filter(part =>
    part.textContent.trim()).map(part => {
      const style = getComputedStyle(part), ink = light(part.closest('svg') ? style.fill : style.color);
      return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); }));
}"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of every kind: runs of every task, one that trains, seeds and a study."""
    root = tmp_path_factory.mktemp("pages")
    for name, (task, labels) in TASKS.items():
        write_fake_run(root / "runs" / name, task, num_labels=labels, num_rows=150 if labels < 50 else 600, signal=2.0)
    lock_as(write_watched(root / "runs" / "training"), 1, "far-away")
    for name, skill in (("seeds", 1.0), ("others", 0.3)):
        write_drawn_seeds(root / "runs" / name, {seed: drawn_rows(120, skill, seed) for seed in (1, 2, 3)})
    study = root / "runs" / "study"
    write_study(study, conclude(study, drawn_study(study), print))
    return root


@pytest.fixture(scope="module")
def files(runs: Path) -> dict[str, Path]:
    """Every kind of page that is a file."""
    found = {name: runs / f"{name}.html" for name in (*TASKS, "seeds", "compare", "compare-seeds", "study")}
    for name in (*TASKS, "seeds"):
        report_of(runs / "runs" / name).save(found[name])
    pairs = {"compare": ("seeds/seed-1", "others/seed-2"), "compare-seeds": ("seeds", "others")}
    for name, both in pairs.items():
        found[name].write_text(comparison_page(compare_runs([str(runs / "runs" / one) for one in both])), encoding="utf-8")
    study = runs / "runs" / "study"
    found["study"].write_text(study_page("study", read_study(study)), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def live(runs: Path) -> Iterator[LiveServer]:
    server = LiveServer(runs / "runs")
    yield server
    server.stop()


def refuse_faults(page: Page, width: int) -> None:
    """Fail if something of a page is cut off, or too small to read."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == []
    assert page.evaluate(TINY) == []
    if width == WIDTHS[0]:
        assert page.evaluate(WIDE) == [], "every table fits on a large screen"


@pytest.mark.parametrize("kind", [*TASKS, "seeds", "compare", "compare-seeds", "study"])
def test_nothing_is_cut_off_and_everything_can_be_read(kind: str, files: dict[str, Path], open_page: Callable) -> None:
    page = open_page(files[kind], offline=True)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        refuse_faults(page, width)
        assert page.evaluate(STRAYS) == [], "all marks are within the axes"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate(CONTRAST) > 4.5, f"the contrast that WCAG asks for, {scheme}"


@pytest.mark.parametrize("path", LIVE, ids=lambda path: path.partition("?")[0] or "list")
def test_nothing_of_the_live_page_is_cut_off(path: str, live: LiveServer, open_page: Callable) -> None:
    page = open_page(live.address + path)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        refuse_faults(page, width)


def test_a_printed_report_keeps_its_legends_and_the_heads_of_its_tables(files: dict[str, Path], open_page: Callable) -> None:
    page = open_page(files["several"], width=700)
    page.emulate_media(media="print")
    assert page.locator(".legend button").first.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.legend i')).printColorAdjust") == "exact", "with its colors"
    assert page.locator("th button", has_text="precision").first.is_visible()
    assert not page.locator("nav.contents").is_visible()
    assert not page.locator("button.theme").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.grid2')).gridTemplateColumns").count("px") == 2
