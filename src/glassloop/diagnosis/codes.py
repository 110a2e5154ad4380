"""The codes of all findings: how serious each one is, why it matters, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)  # the most serious one first


@dataclass(frozen=True)
class Code:
    """One kind of finding."""

    code: str
    title: str
    severity: str
    why: str
    remedy: str


CODES = {
    code.code: code
    for code in (
        Code(
            "GL101", "Rows in several splits", ERROR,
            "A model has seen the answer of a test row that is also a training row, so its score is too high.",
            "Remove these rows from the training rows: glassloop clean with --drop GL101.",
        ),
        Code(
            "GL102", "Near duplicates in several splits", WARNING,
            "A test row that differs from a training row in few words is easier than a new text.",
            "Look at the examples; keep rows of one source in one split. --drop GL102 removes them from a file.",
        ),
        Code(
            "GL103", "One text of a pair in several splits", INFO,
            "A model can remember what it learned about a text that it meets again with another partner.",
            "If new data brings new texts, split by text instead of by pair.",
        ),
        Code(
            "GL201", "Near duplicates", INFO,
            "Texts that differ in few words count almost twice, and leak if a split comes between them.",
            "Keep one of each group: --drop GL201.",
        ),
        Code(
            "GL202", "Duplicates", INFO,
            "Rows with the same texts and the same label count several times.",
            "Keep one of each group if the repetition means nothing: --drop GL202.",
        ),
        Code(
            "GL203", "Pairs in both orders", INFO,
            "(A, B) and (B, A) with one label are almost the same row twice.",
            "Keep one of them if the order means nothing: --drop GL203.",
        ),
        Code(
            "GL204", "Contradictory duplicates", ERROR,
            "The same text has several labels. No model can be right about all of these rows.",
            "Decide which label is right, or remove the rows: --drop GL204.",
        ),
        Code(
            "GL205", "Contradictory pairs in both orders", WARNING,
            "(A, B) and (B, A) have different labels. That is wrong wherever the order of a pair means nothing.",
            "Correct the labels, or remove the rows: --drop GL205. Ignore this where the order matters, as in entailment.",
        ),
        Code(
            "GL206", "Pairs of the same text twice", INFO,
            "Both texts of the pair are the same, so the row says nothing about two texts.",
            "Check how these rows came about, or remove them: --drop GL206.",
        ),
        Code(
            "GL207", "Near duplicates with different labels", WARNING,
            "Texts that differ in few words have different labels. Either the words decide, or one of the labels is wrong.",
            "Look at each group, and correct the labels.",
        ),
        Code(
            "GL301", "Suspected label errors", WARNING,
            "A model that never saw the row is sure of another label. Wrong labels lower the score, and make it unreliable.",
            "Look at the rows in this order, and correct the labels: glassloop clean with --relabel.",
        ),
        Code(
            "GL302", "Classes with hardly any rows", INFO,
            "Below 5 rows, a class can neither be learned nor evaluated.",
            "Add rows to these classes, or merge them with others.",
        ),
        Code(
            "GL401", "Texts without words", WARNING,
            "A text without a letter or digit tells the model nothing.",
            "Fill the texts, or remove the rows: --drop GL401.",
        ),
        Code(
            "GL402", "Texts in a wrong encoding", WARNING,
            "Characters such as Ã© are letters that were read in another encoding than they were written in.",
            "Export the texts again as UTF-8, or name the encoding of the file with --encoding.",
        ),
        Code(
            "GL403", "Truncated rows", INFO,
            "The model does not read the end of these rows.",
            "Use a larger --max_length, or shorten the texts, if the end matters.",
        ),
        Code(
            "GL404", "Outliers", INFO,
            "These rows are far from every other row: often another topic, another language, or no text at all.",
            "Check that they belong to the task.",
        ),
        Code(
            "GL405", "Texts in another script", INFO,
            "Most letters of these rows belong to another script than those of almost all others.",
            "Check that the model was pretrained on this language.",
        ),
        Code(
            "GL501", "The length predicts the label", WARNING,
            "A model may learn how long texts are instead of what they say, and fail where that differs.",
            "Check how rows of each label were collected, and balance their lengths.",
        ),
        Code(
            "GL502", "One text of a pair predicts the label", INFO,
            "If one text is enough, a model need not compare the two.",
            "Check how the other text was written; pair the same texts with different partners.",
        ),
        Code(
            "GL503", "Single words predict the label", INFO,
            "Almost all rows with such a word have one label. A model may learn the word instead of the task.",
            "Keep words that carry the meaning; remove those of the collection, such as tags and signatures.",
        ),
        Code(
            "GL504", "Groups on which the model does worse", INFO,
            "The rows of one part of the data are predicted worse than the others.",
            "Check the labels of this part, and add rows to it.",
        ),
    )
}  # fmt: skip
