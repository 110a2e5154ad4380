"""Stages: what is shown while a command works, and nothing where nobody asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from glassloop import encode, load_examples, load_tokenizer
from glassloop.base.output import Stage, advance, clear, show, show_on, stage


class Recorder:
    """A display that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self, stage: Stage) -> None:
        self.told.append(stage)

    def advance(self, num_rows: int) -> None:
        self.told.append(num_rows)

    def end(self) -> None:
        self.told.append("end")

    def clear(self) -> None:
        self.told.append("clear")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    display = Recorder()
    show_on(display)
    yield display
    show_on(None)


def test_nothing_is_shown_unless_a_display_is_chosen(capfd: pytest.CaptureFixture[str]) -> None:
    with stage("reading", 3):
        advance(3)
        clear()
    assert capfd.readouterr() == ("", "")


def test_a_stage_begins_advances_and_ends(recorder: Recorder) -> None:
    advance(1)
    with stage("reading", 3):
        advance(2)
    advance(1)
    assert recorder.told == [Stage("reading", 3), 2, "end"]


def test_a_stage_ends_with_an_error(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="broken"), stage("reading"):
        raise ValueError("broken")
    with stage("writing"):
        pass
    assert recorder.told == [Stage("reading"), "end", Stage("writing"), "end"]


def test_a_stage_inside_another_is_part_of_it(recorder: Recorder) -> None:
    with stage("predicting", 9):
        with stage("evaluating", 5):
            advance(5)
        advance(4)
    assert recorder.told == [Stage("predicting", 9), 5, 4, "end"]


def test_a_line_makes_room_for_itself(recorder: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    with stage("reading"):
        show("a line")
    show("another")
    assert recorder.told == [Stage("reading"), "clear", "end"]
    assert capsys.readouterr().out == "a line\nanother\n"


def test_reading_and_tokenizing_count_every_row(recorder: Recorder, tiny_model_dir: Path, write) -> None:
    path = write("rows.csv", "text,label\n" + "".join(f"good film {number},{number % 2}\n" for number in range(50)))
    examples = load_examples(path)
    encode(examples, load_tokenizer(tiny_model_dir), 16)
    sizes = {name: fact.num_rows for name, fact in examples.facts.items()}
    expected = [Stage("reading rows.csv"), 50, "end"]
    for name, size in sizes.items():
        expected += [Stage(f"tokenizing {name}", size), size, "end"]
    assert recorder.told == expected
