"""`glassloop inspect --deep`: each planted fault is found in its rows, and clean rows give no findings of that kind."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from glassloop.base.errors import SettingsError
from glassloop.data.sources import load_examples
from glassloop.diagnosis import findings, texts
from glassloop.diagnosis.codes import CODES, ERROR, INFO, WARNING
from glassloop.diagnosis.embeddings import neighbors_of
from glassloop.diagnosis.findings import Diagnosis, Finding, diagnose, wanted_codes
from glassloop.diagnosis.page import inspection_page
from glassloop.diagnosis.rows import GARBLED, WORDLESS, flags_of, is_garbled, script_of

FILLERS = "the a is was film story very not and of to in on it this that first second sentence one two".split()
Line = Sequence[object]


def sentence(random_words: random.Random, label: str, number: int = 9) -> str:
    words = [random_words.choice(FILLERS) for _ in range(number)]
    words[random_words.randrange(number)] = label
    return " ".join(words)


def lines(number: int, seed: int = 1) -> list[list[str]]:
    """Texts that contain their label, all different."""
    drawn = random.Random(seed)
    return [[sentence(drawn, label), label] for label in ["good", "bad"] * (number // 2)]


def pairs(number: int) -> list[list[str]]:
    drawn = random.Random(2)
    return [[sentence(drawn, "film"), sentence(drawn, label), label] for label in ["good", "bad"] * (number // 2)]


Look = Callable[..., Diagnosis]


@pytest.fixture
def look(tmp_path: Path, tiny_model_dir: Path) -> Look:
    """Writes the rows of each split to a file, and returns what is found in them."""

    def run(train: Sequence[Line], test: Sequence[Line] = (), **settings: object) -> Diagnosis:
        names = ["text", *(["text_pair"] if len(train[0]) == 3 else []), "label"]
        names = settings.pop("columns", names)
        for name, part in (("train", train), ("test", test)):
            with (tmp_path / f"{name}.csv").open("w", newline="") as opened:
                csv.writer(opened).writerows([names[: len(part[0])] if part else names, *part])
        given = {"test": str(tmp_path / "test.csv")} if test else {}
        most = settings.pop("most_rows", None)
        examples = load_examples(tmp_path / "train.csv", validation_share=0, **given, **settings)
        return diagnose(examples, str(tiny_model_dir), device="cpu", most_rows=most)

    return run


def found(diagnosis: Diagnosis, code: str, split: str = "train") -> Finding:
    return next(one for one in diagnosis.findings if (one.code, one.split) == (code, split))


def codes(diagnosis: Diagnosis) -> set[str]:
    return {one.code for one in diagnosis.findings}


# --- equal rows
def test_equal_rows_are_found_with_their_numbers_whatever_their_case_and_spaces(look: Look) -> None:
    train = lines(60)
    train[9] = [train[4][0].upper().replace(" ", "  "), train[4][1]]
    train[20] = [train[30][0], {"good": "bad", "bad": "good"}[train[30][1]]]
    test = [*lines(20, seed=7), train[41]]
    diagnosis = look(train, test)
    assert (found(diagnosis, "GL202").rows, found(diagnosis, "GL202").drop) == ([5, 10], [10])
    assert (found(diagnosis, "GL204").rows, found(diagnosis, "GL204").drop) == ([21, 31], [21, 31])
    assert (found(diagnosis, "GL101").rows, found(diagnosis, "GL101", "test").rows) == ([42], [21])
    example = found(diagnosis, "GL101", "test").examples[0]
    assert (example.row, example.split, example.texts, example.label) == (21, "test", [train[41][0]], train[41][1])
    assert example.note == "with train 42"


def test_pairs_have_findings_of_their_own(look: Look) -> None:
    train = pairs(60)
    train[10] = [train[2][1], train[2][0], train[2][2]]
    train[13] = [train[6][1], train[6][0], {"good": "bad", "bad": "good"}[train[6][2]]]
    train[17] = [train[17][0], train[17][0], train[17][2]]
    drawn = random.Random(9)
    test = [[train[30][0], sentence(drawn, "good"), "good"], [sentence(drawn, "film"), sentence(drawn, "bad"), "bad"]]
    diagnosis = look(train, test)
    assert (found(diagnosis, "GL203").rows, found(diagnosis, "GL203").drop) == ([3, 11], [11])
    assert found(diagnosis, "GL205").rows == [7, 14]
    assert found(diagnosis, "GL206").rows == [18]
    assert (found(diagnosis, "GL103").rows, found(diagnosis, "GL103", "test").rows) == ([31], [1])
    assert "GL101" not in codes(diagnosis)


def test_near_duplicates_share_most_of_their_words(look: Look) -> None:
    train = lines(60)
    drawn = random.Random(5)
    long = " ".join(drawn.choice(FILLERS) for _ in range(24)) + " good"
    train[12], train[47] = [long, "good"], [long + " very", "good"]
    train[21], train[50] = [long[::-1][::-1].replace("good", "one good"), "bad"], [train[50][0], train[50][1]]
    test = [[long.replace("good", "good film"), "good"], *lines(20, seed=3)]
    diagnosis = look(train, test)
    near = {row for one in diagnosis.findings if one.code in ("GL102", "GL201", "GL207") for row in one.rows}
    assert {13, 48} <= near
    assert 22 in found(diagnosis, "GL207").rows
    assert 1 in found(diagnosis, "GL102", "test").rows
    assert not {*range(24, 47)} & near


def test_clean_rows_have_no_duplicates_and_no_broken_texts(look: Look) -> None:
    assert not {code for code in codes(look(lines(80))) if code[:3] in ("GL1", "GL2", "GL4")}


# --- labels
def test_flipped_labels_are_suspected_first_with_the_other_label_and_the_nearest_rows(look: Look) -> None:
    train = lines(400)
    flipped = [*range(5, 400, 40)]
    for place in flipped:
        train[place][1] = {"good": "bad", "bad": "good"}[train[place][1]]
    diagnosis = look(train)
    suspects = found(diagnosis, "GL301")
    planted = {place + 1 for place in flipped}
    assert {*suspects.rows[:8]} <= planted
    assert len(planted & {*suspects.rows}) >= 8
    first = suspects.examples[0]
    assert first.suggested == {"good": "bad", "bad": "good"}[str(first.label)]
    assert first.probability is not None
    assert first.probability > 0.5
    assert len(first.neighbors) == findings.SHOWN_NEIGHBORS
    assert all(near.row != first.row for near in first.neighbors)
    assert [one.label for one in diagnosis.noise] == ["bad", "good"]
    assert all(0 <= one.low <= one.share <= one.high <= 1 for one in diagnosis.noise)


def test_every_task_has_suspects(look: Look) -> None:
    drawn = random.Random(4)
    several, scores = [], []
    for number in range(200):
        words = [word for word, has in (("good", number % 2), ("bad", number % 3 == 0)) if has]
        text = " ".join([drawn.choice(FILLERS) for _ in range(6)] + words)
        several.append([text, "|".join(words)])
        scores.append([text, float(len(words)) + drawn.random() / 10])
    several[17][1] = "bad" if several[17][1] != "bad" else "good"
    scores[40][1] = 9.0
    sets = look(several, label_separator="|")
    assert 18 in found(sets, "GL301").rows
    suspected = found(look(scores, task="regression"), "GL301")
    assert suspected.rows[0] == 41
    assert suspected.examples[0].label == 9.0
    assert isinstance(suspected.examples[0].suggested, float)


def test_rows_without_labels_are_compared_and_not_suspected(look: Look) -> None:
    train = lines(60)
    diagnosis = look(train, [[train[3][0]], *([text] for text, _ in lines(10, seed=8))])
    assert found(diagnosis, "GL101", "test").rows == [1]
    assert not [one for one in diagnosis.findings if one.code == "GL301" and one.split == "test"]


def test_one_class_and_few_rows_are_no_error(look: Look) -> None:
    assert look([["a film", "good"], ["a story", "good"], ["the film", "bad"]]).num_rows == 3
    assert look([["a film", "good"], ["a film", "bad"]]).findings


# --- texts
def test_broken_texts_are_found(look: Look) -> None:
    train = lines(60)
    train[3][0] += " cafÃ© one"
    train[8][0] = "..."
    train[15][0] = "это другой язык и другие буквы"
    diagnosis = look(train)
    assert found(diagnosis, "GL402").rows == [4]
    assert (found(diagnosis, "GL401").rows, found(diagnosis, "GL401").drop) == ([9], [9])
    assert found(diagnosis, "GL405").rows == [16]
    assert found(diagnosis, "GL405").examples[0].note == "cyrillic"


@pytest.mark.parametrize("text", ["cafÃ©", "donâ€™t", "lost \ufffd sign", "naÃ¯ve", "Â£5"])
def test_garbled_texts_are_recognized(text: str) -> None:
    assert is_garbled(text)
    assert flags_of([text, "a"]) == GARBLED


@pytest.mark.parametrize("text", ["café", "naïve – “quoted”", "Ärger über Öl", "日本語", "5 € for Ångström", "a\tb\nc"])
def test_sound_texts_are_not_garbled(text: str) -> None:
    assert not is_garbled(text)
    assert flags_of([text]) == 0


def test_scripts_are_told_apart() -> None:
    assert [script_of(text) for text in ("film", "фильм a", "映画", "12 !")] == ["LATIN", "CYRILLIC", "CJK", "none"]
    assert flags_of(["a", "!?"]) == WORDLESS


def test_truncated_rows_are_found_exactly(look: Look) -> None:
    train = lines(40)
    train[5][0], train[6][0] = "one " * 61 + "good", "two " * 62 + "good"
    cut = found(look(train), "GL403")
    assert cut.rows == [7]
    assert cut.examples[0].note == "1 tokens are cut"


# --- shortcuts and groups
def test_lengths_words_and_one_text_that_predict_the_label_are_found(look: Look) -> None:
    drawn = random.Random(6)
    train = [[sentence(drawn, "one", 4 + 9 * (number % 2)), "ab"[number % 2]] for number in range(200)]
    assert "%" in found(look(train), "GL501").told
    train = [[sentence(drawn, ("two", "x")[number % 2 and number % 3 == 0], 9), "ab"[number % 2]] for number in range(300)]
    assert '"x"' in found(look(train), "GL503").told
    assert "GL501" not in codes(look(lines(200)))
    only_second = found(look(pairs(200)), "GL502")
    assert only_second.told.startswith('"text_pair" alone')


def test_groups_of_a_column_with_a_lower_score_are_found(look: Look) -> None:
    drawn, train = random.Random(8), []
    for number in range(300):
        label = ["good", "bad"][number % 2]
        is_odd = number % 5 == 0
        train.append([sentence(drawn, label), ["web", "mail"][is_odd], drawn.choice(["good", "bad"]) if is_odd else label])
    diagnosis = look(train, columns=["text", "source", "label"], text="text", label="label")
    assert found(diagnosis, "GL504").told.startswith("source = mail: ")
    assert len(found(diagnosis, "GL504").rows) == 60


# --- numbers, samples, codes
def test_rows_that_cannot_be_read_count(tmp_path: Path, tiny_model_dir: Path) -> None:
    rows_of_file = [f"{text},{label}" for text, label in lines(30)]
    rows_of_file[4] = "one,two,three"
    rows_of_file[20] = rows_of_file[10]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows_of_file]) + "\n")
    examples = load_examples(tmp_path / "rows.csv", validation_share=0, bad_rows="skip")
    assert examples.numbers["train"].tolist() == [number for number in range(1, 31) if number != 5]
    assert found(diagnose(examples, str(tiny_model_dir), device="cpu"), "GL202").rows == [11, 21]
    halves = load_examples(tmp_path / "rows.csv", validation_share=0.5, bad_rows="skip")
    both = np.sort(np.concatenate([halves.numbers["train"], halves.numbers["validation"]]))
    assert both.tolist() == examples.numbers["train"].tolist()


def test_a_sample_is_drawn_of_many_rows_and_equal_rows_are_found_among_all(look: Look) -> None:
    train = lines(300)
    train[290] = train[10]
    diagnosis = look(train, most_rows=50)
    assert (diagnosis.num_rows, diagnosis.num_read, diagnosis.is_sample) == (300, 50, True)
    assert "(a random sample of 300)" in findings.summary(diagnosis)
    assert found(diagnosis, "GL202").rows == [11, 291]


def test_codes_and_severities_are_wanted() -> None:
    assert wanted_codes(["gl101, GL301", "GL204"]) == {"GL101", "GL204", "GL301"}
    errors = {code.code for code in CODES.values() if code.severity == ERROR}
    assert wanted_codes(["error"]) == errors
    assert wanted_codes(["warning"]) == errors | {code.code for code in CODES.values() if code.severity == WARNING}
    assert wanted_codes(["info"]) == {*CODES}
    with pytest.raises(SettingsError, match='there is no finding "GL999"'):
        wanted_codes(["GL999"])


def test_every_code_says_what_it_is_and_what_to_do() -> None:
    for code, about in CODES.items():
        assert code == about.code
        assert about.severity in (ERROR, WARNING, INFO)
        assert about.why.endswith(".")
        assert about.remedy.endswith(".")


# --- the page, and the outliers
def test_the_page_shows_every_finding_and_no_text_becomes_markup(look: Look, tmp_path: Path) -> None:
    train = lines(80)
    train[7] = ["<script>alert(1)</script> good film", "good"]
    train[30] = ["<script>alert(1)</script> good film", "bad"]
    diagnosis = look(train)
    html = inspection_page(diagnosis, "rows.csv", load_examples(tmp_path / "train.csv", validation_share=0))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert all(f'id="{code}"' in html for code in codes(diagnosis))
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert json.loads(json.dumps(diagnosis.findings[0].content()["rows"])) == diagnosis.findings[0].rows


def test_outliers_are_far_from_all_rows() -> None:
    drawn = np.random.default_rng(0)
    vectors = drawn.normal(size=(200, 1, 16)) * 0.05 + np.eye(16)[0]
    vectors[42] = -np.eye(16)[3]
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    neighbors = neighbors_of(vectors.astype(np.float32))
    far, distances = texts.outliers(neighbors)
    assert far.tolist() == [42]
    assert distances[42] == distances.max()


def test_swapped_pairs_are_neighbors() -> None:
    drawn = np.random.default_rng(0)
    vectors = drawn.normal(size=(30, 2, 64))
    vectors[9] = vectors[4][::-1]
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    neighbors = neighbors_of(vectors.astype(np.float32))
    assert (neighbors.rows[9, 0], neighbors.rows[4, 0]) == (4, 9)
    assert neighbors.swapped[9, 0]
    assert neighbors.cosines[9, 0] == pytest.approx(1, abs=1e-5)
    assert not neighbors.swapped[0, 0] or neighbors.cosines[0, 0] < 0.9
