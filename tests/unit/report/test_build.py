"""Whole reports: every task and state of a run, sizes, texts that try to become markup, and charts as files."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from drawn import Reader, every_chart
from run_folders import HOSTILE, write_fake_run

from glassloop.base.errors import ModelError, SettingsError
from glassloop.report import build
from glassloop.report.build import NO_REPORT, Report, report_of, write_charts, write_report
from glassloop.runs.history import RESUME, STOP, note_moment, write_history
from glassloop.runs.record import RUNNING
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

CHARTS = {f"chart-{number}": chart for number, chart in enumerate(every_chart())}


def read(shown: Path | Report) -> str:
    report = report_of(shown) if isinstance(shown, Path) else shown
    return " ".join("".join(Reader(report.html).texts).split())


@pytest.mark.parametrize(("task", "labels"), [(CLASSES, 2), (CLASSES, 30), (SEVERAL, 4), (SCORE, 1)])
def test_every_task_has_all_sections_with_the_numbers_of_the_record(tmp_path: Path, task: str, labels: int) -> None:
    record = write_fake_run(tmp_path, task, num_labels=labels)
    report = report_of(tmp_path)
    text = read(report)
    for title in ("Results", "Learning curves", "Errors", "Confidence", "Data", "The run"):
        assert title in text
    assert f"{record.evaluation[f'eval_{record.metrics[0]}']:.4f}" in text
    assert report.html.count("<figure") == len(report.charts) >= 10
    assert len(report.html) < 400_000


def test_unfinished_old_and_damaged_runs_have_a_report(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "stopped", status=RUNNING)
    note_moment(tmp_path / "stopped", RESUME, 20, 60)
    note_moment(tmp_path / "stopped", STOP, 60, 60)
    assert "The run was stopped before its end and can be resumed." in read(tmp_path / "stopped")
    assert ">resumed<" in report_of(tmp_path / "stopped").html
    write_fake_run(tmp_path / "old", tokens=False)
    assert "words" in read(tmp_path / "old"), "lengths in words, because tokens were not recorded"
    write_fake_run(tmp_path / "damaged")
    (tmp_path / "damaged" / "validation-predictions.jsonl").write_text("{", encoding="utf-8")
    assert "Could not be read" in read(tmp_path / "damaged")
    write_fake_run(tmp_path / "empty", status=RUNNING)
    (tmp_path / "empty" / "history.jsonl").unlink()
    assert "Nothing was logged yet." in read(tmp_path / "empty")
    with pytest.raises(ModelError, match="is not a run folder"):
        report_of(tmp_path)
    write_history(tmp_path, [{"step": 1, "loss": 0.5}, {"step": 2, "eval_loss": 0.4, "eval_f1": 0.5}])
    assert "The output folder of a Trainer" in read(tmp_path)


@pytest.mark.parametrize(("task", "labels"), [(CLASSES, 3), (SEVERAL, 3), (SCORE, 1)])
def test_hostile_texts_and_labels_stay_text(tmp_path: Path, task: str, labels: int) -> None:
    write_fake_run(tmp_path, task, num_labels=labels, text=HOSTILE, label=HOSTILE)
    html = report_of(tmp_path).html
    page = Reader(html)
    assert page.tags.count("script") == html.count("</script>") == 1
    assert "img" not in page.tags
    assert not [name for name in page.attributes if name.startswith("on") or name in ("style", "src")]


def test_many_rows_and_many_classes_stay_small_and_say_what_they_omit(tmp_path: Path) -> None:
    write_fake_run(tmp_path, num_rows=700, num_labels=1_000, text="word " * 700, signal=2.0)
    report = report_of(tmp_path)
    text = read(report)
    assert len(report.html) < 2_000_000
    assert "20 of 1,000 classes, those with the most errors between them" in text
    assert "more rows are not shown, because their texts are long" in text
    assert "980 less frequent labels are not shown." in text


def test_a_report_and_a_run_need_neither_torch_nor_transformers(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    code = (
        "import sys; from pathlib import Path; from glassloop import Run; from glassloop.report.build import report_of;"
        "report_of(Path(sys.argv[1])); run = Run(sys.argv[1]); run._repr_html_(); run.predictions();"
        "heavy = {'torch', 'transformers', 'datasets', 'sklearn', 'pandas', 'rich'}; print([*heavy & {*sys.modules}])"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_a_report_never_fails_a_run_and_can_be_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fake_run(tmp_path)
    monkeypatch.setenv(NO_REPORT, "1")
    assert write_report(tmp_path) is None
    monkeypatch.delenv(NO_REPORT)
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    monkeypatch.setattr(build, "report_of", lambda folder: 1 / 0)
    assert write_report(tmp_path) is None
    assert capsys.readouterr().err.splitlines() == [
        f"glassloop: the report could not be written: ZeroDivisionError: division by zero; try: glassloop report {tmp_path}"
    ]


def test_a_notebook_shows_a_report_in_a_frame_and_png_without_its_library_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = Report("a run", '<p title="a">&amp;</p>', {}, [])._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"<>]*" title="Report of a run" sandbox="allow-scripts" [^<>]*></iframe>', frame)
    assert '<p title="a">&amp;</p>' in unescape(frame), "the page is escaped once"
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(SettingsError, match=r"pip install 'glassloop\[png\]', or use --format svg"):
        write_charts(CHARTS, tmp_path, "png")


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<svg"), ("csv", b""), ("png", b"\x89PNG")])
def test_every_chart_becomes_a_file(tmp_path: Path, form: str, begins: bytes) -> None:
    if form == "png":
        pytest.importorskip("resvg_py")
    written = write_charts(CHARTS, tmp_path / "charts", form)
    assert [path.name for path in written] == [f"{name}.{form}" for name in CHARTS]
    assert all(path.read_bytes().startswith(begins) and path.stat().st_size > 20 for path in written)
