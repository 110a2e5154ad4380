"""Reports in a real browser: no error, no request; hover, keys and filters work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import HOSTILE, write_fake_run

from glassloop.report.build import report_of
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

KINDS = {"classes": (CLASSES, 2), "many": (CLASSES, 40), "several": (SEVERAL, 4), "scores": (SCORE, 1)}


def written(folder: Path, kind: str, **more: object) -> Path:
    task, labels = KINDS[kind]
    write_fake_run(folder / kind, task, num_labels=labels, num_rows=120, signal=0.8, **more)
    return report_of(folder / kind).save(folder / f"{kind}.html")


def test_values_are_shown_on_hover_and_by_keys(tmp_path: Path, open_page: Callable) -> None:
    page = open_page(written(tmp_path, "classes"))
    plot, tip = page.locator("#errors .plot").first, page.locator("#tip")
    plot.scroll_into_view_if_needed()
    plot.locator(".cell").first.hover()
    assert "true label 0, predicted label 0" in tip.inner_text()
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    plot.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "true label 0, predicted label 1" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_rows_can_be_filtered_series_hidden_and_tables_sorted(tmp_path: Path, open_page: Callable) -> None:
    page = open_page(written(tmp_path, "many"))
    rows = page.locator("#rows-wrong > li:visible")
    assert rows.count() == 10, "the first ones of a long list"
    form = page.locator("form[data-for=rows-wrong]")
    form.locator("input").fill("row 7")
    assert all("row 7" in text for text in rows.all_inner_texts())
    form.locator("input").fill("")
    label = page.locator("#rows-wrong > li").first.get_attribute("data-label")
    form.locator("select[name=label]").select_option(label)
    assert {row.get_attribute("data-label") for row in rows.all()} == {label}
    button = page.locator("#curves .legend button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator("#curves figure").first.locator(".series.off").count() == 1
    page.locator("#errors summary", has_text="All 40 classes").click()
    page.locator("#errors th button", has_text="F1").click()
    values = [
        float(text.replace("–", "-1")) for text in page.locator("#errors table.sortable td:nth-child(5)").all_inner_texts()
    ]
    assert values == sorted(values, reverse=True)


def test_the_reader_chooses_light_or_dark(tmp_path: Path, open_page: Callable) -> None:
    page = open_page(written(tmp_path, "scores"))
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("button.theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("kind", ["classes", "several"])
def test_hostile_texts_and_labels_execute_nothing(tmp_path: Path, kind: str, open_page: Callable) -> None:
    page = open_page(written(tmp_path, kind, text=HOSTILE, label=HOSTILE), offline=True)
    page.locator("#errors .plot").first.scroll_into_view_if_needed()
    page.locator("#errors .plot :is(.cell, .bar)").first.hover()
    assert "pwned" in page.locator("#tip").inner_text(), "shown as text"
    page.locator("form[data-for=rows-wrong] input").fill("pwned")
    page.wait_for_timeout(200)
    assert page.title() == kind
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 0
