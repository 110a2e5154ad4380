"""Metrics against definitions written by hand and other libraries; what is refused, undefined or forgotten; those of a run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch

from glassloop.base.errors import DataError, GlassloopError, ModelError, SettingsError
from glassloop.scores import metrics as metrics_module
from glassloop.scores.metrics import AVERAGED, Measures, chosen_measures, decide, load_metric, metrics_for, recorded_measures
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

Array = np.ndarray[Any, Any]
SIZES = (2, 17, 400)


# --- the definitions ---------------------------------------------------------------------------------------------
def counts(predictions: Array, references: Array, label: int = 1) -> tuple[int, int, int]:
    """True positives, false positives and false negatives of one class."""
    hit, true = predictions == label, references == label
    return int((hit & true).sum()), int((hit & ~true).sum()), int((~hit & true).sum())


def ratio(above: float, below: float) -> float:
    return above / below if below else 0.0


def from_counts(name: str, tp: int, fp: int, fn: int) -> float:
    below = {"precision": tp + fp, "recall": tp + fn, "f1": 2 * tp + fp + fn}[name]
    return ratio(2 * tp if name == "f1" else tp, below)


def averaged(name: str, per_label: list[tuple[int, int, int]], average: str) -> float:
    """One number from the counts of every label."""
    if average == "micro":
        return from_counts(name, *(sum(column) for column in zip(*per_label, strict=True)))
    values = [from_counts(name, *each) for each in per_label]
    if average == "macro":
        return sum(values) / len(values)
    support = [tp + fn for tp, _, fn in per_label]
    return ratio(sum(value * weight for value, weight in zip(values, support, strict=True)), sum(support))


def matthews(predictions: Array, references: Array) -> float:
    """Gorodkin's R_K, which for two classes is Matthews' phi."""
    labels = sorted({*predictions.tolist(), *references.tolist()})
    total, right = len(references), int((predictions == references).sum())
    said = [int((predictions == label).sum()) for label in labels]
    true = [int((references == label).sum()) for label in labels]
    above = right * total - sum(p * t for p, t in zip(said, true, strict=True))
    below = (total**2 - sum(p * p for p in said)) * (total**2 - sum(t * t for t in true))
    return ratio(above, math.sqrt(below))


def pearson(x: Array, y: Array) -> float:
    dx, dy = x - x.mean(), y - y.mean()
    return ratio(float((dx * dy).sum()), math.sqrt(float((dx * dx).sum()) * float((dy * dy).sum())))


def spearman(x: Array, y: Array) -> float:
    """Pearson's correlation of ranks: 1 for the smallest; equal values share the mean of their places."""
    ranks = (np.array([(side < value).sum() + ((side == value).sum() + 1) / 2 for value in side]) for side in (x, y))
    return pearson(*ranks)


def class_rows(seed: int, size: int, chances: tuple[float, ...]) -> tuple[Array, Array]:
    """References drawn with these chances, and predictions that are right about two times in three."""
    rng = np.random.default_rng(seed)
    references = rng.choice(len(chances), size, p=chances)
    guesses = rng.choice(len(chances), size, p=chances)
    return np.where(rng.random(size) < 0.6, references, guesses), references


def label_rows(seed: int, size: int, width: int, chance: float) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    references = (rng.random((size, width)) < chance).astype(int)
    return np.where(rng.random((size, width)) < 0.7, references, 1 - references), references


def score_rows(seed: int, size: int, ties: bool) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    references = rng.uniform(0, 5, size)
    predictions = references + rng.normal(0, 2, size)
    return (predictions.round(), references.round()) if ties else (predictions, references)


def every_metric() -> dict[tuple[str, str | None], tuple[str, Callable[[], metrics_module.Metric]]]:
    """Each metric there is, by name and configuration: the kind of row it takes, and how to make one."""
    every: dict[tuple[str, str | None], tuple[str, Callable[[], metrics_module.Metric]]] = {
        ("for", "two classes"): ("classes", partial(metrics_for, CLASSES, 2, positive=1)),
        ("for", "classes"): ("classes", partial(metrics_for, CLASSES, 3)),
        ("for", "labels"): ("multilabel", partial(metrics_for, SEVERAL, 4)),
        ("for", "scores"): ("scores", partial(metrics_for, SCORE, 1)),
        **{(name, None): (kind, partial(load_metric, name)) for name, kind in metrics_module.PLAIN.items()},
    }
    for name, configs in metrics_module.CONFIGS.items():
        for config in configs:
            kind = "multilabel" if config in ("samples", "multilabel") else "scores" if config == "stsb" else "classes"
            if name not in AVERAGED or config != "multilabel":  # which would need an average as well
                every[name, config] = (kind, partial(load_metric, name, config))
    return every


EVERY = every_metric()
ROWS = {"classes": class_rows(0, 61, (0.3, 0.7)), "multilabel": label_rows(0, 61, 4, 0.4), "scores": score_rows(0, 61, False)}


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-12, abs=1e-12)


# --- values ------------------------------------------------------------------------------------------------------
@pytest.mark.sample(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("positive", [0.03, 0.5, 0.96])
def test_two_classes(size: int, positive: float) -> None:
    for seed in range(2):
        predictions, references = class_rows(seed, size, (1 - positive, positive))
        given = {"predictions": predictions, "references": references}
        accuracy = close(float((predictions == references).mean()))
        tally, other = counts(predictions, references), counts(predictions, references, 0)
        f1 = close(from_counts("f1", *tally))
        for task, keys in metrics_module.GLUE.items():
            if task != "stsb":
                every = {"accuracy": accuracy, "f1": f1, "matthews_correlation": close(matthews(predictions, references))}
                assert [*load_metric("glue", task).compute(**given).items()] == [(key, every[key]) for key in keys]
        for name in AVERAGED:
            assert load_metric(name).compute(**given) == {name: close(from_counts(name, *tally))}
            assert load_metric(name).compute(**given, pos_label=0) == {name: close(from_counts(name, *other))}
        for number, of_class in enumerate((other, tally)):
            expected = {"accuracy": accuracy, "f1": close(from_counts("f1", *of_class))}
            assert metrics_for(CLASSES, 2, positive=number).compute(**given) == expected
        macro = averaged("f1", [each for each in (other, tally) if any(each)], "macro")
        assert metrics_for(CLASSES, 2).compute(**given) == {"accuracy": accuracy, "f1_macro": close(macro)}


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("chances", [(0.2, 0.3, 0.5), (0.9, 0.05, 0.05), (0.1, 0.2, 0.05, 0.05, 0.3, 0.2, 0.1)])
def test_more_classes(size: int, chances: tuple[float, ...]) -> None:
    for seed in range(2):
        predictions, references = class_rows(seed, size, chances)
        given = {"predictions": predictions, "references": references}
        seen = sorted({*predictions.tolist(), *references.tolist()})
        tallies = [counts(predictions, references, label) for label in seen]
        accuracy = close(float((predictions == references).mean()))
        for name in AVERAGED:
            for average in ("micro", "macro", "weighted"):
                expected = {name: close(averaged(name, tallies, average))}
                assert load_metric(name, average).compute(**given) == expected
                assert seed or load_metric(name).compute(**given, average=average) == expected
            some = averaged(name, [counts(predictions, references, label) for label in (0, 2)], "macro")
            assert load_metric(name, "macro").compute(**given, labels=[0, 2]) == {name: close(some)}
        assert load_metric("accuracy").compute(**given) == {"accuracy": accuracy}
        expected = {"matthews_correlation": close(matthews(predictions, references))}
        assert load_metric("matthews_correlation").compute(**given) == expected
        macro = close(averaged("f1", tallies, "macro"))
        assert metrics_for(CLASSES, len(chances)).compute(**given) == {"accuracy": accuracy, "f1_macro": macro}


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", [1, 90])
@pytest.mark.parametrize("width", [1, 2, 6])
@pytest.mark.parametrize("chance", [0.05, 0.5])
def test_many_labels(size: int, width: int, chance: float) -> None:
    predictions, references = label_rows(size, size, width, chance)
    given = {"predictions": predictions, "references": references}
    tallies = [counts(predictions[:, column], references[:, column]) for column in range(width)]
    exact = close(float((predictions == references).all(axis=1).mean()))
    by_row = [counts(row, true) for row, true in zip(predictions, references, strict=True)]
    for name in AVERAGED:
        for average in ("micro", "macro", "weighted"):
            expected = {name: close(averaged(name, tallies, average))}
            assert load_metric(name, "multilabel").compute(**given, average=average) == expected
        assert load_metric(name, "samples").compute(**given) == {name: close(averaged(name, by_row, "macro"))}
    f1 = {f"f1_{average}": close(averaged("f1", tallies, average)) for average in ("micro", "macro")}
    every = {**f1, "f1_samples": close(averaged("f1", by_row, "macro")), "exact_match": exact}
    assert [*load_metric("multilabel_f1").compute(**given).items()] == [*every.items()]
    assert metrics_for(SEVERAL, width).compute(**given) == {**f1, "exact_match": exact}
    assert load_metric("accuracy", "multilabel").compute(**given) == {"accuracy": exact}


@pytest.mark.sample(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ties", [False, True])
def test_scores(size: int, ties: bool) -> None:
    for seed in range(2):
        predictions, references = score_rows(seed, size, ties)
        given = {"predictions": predictions, "references": references}
        r, rho = close(pearson(predictions, references)), close(spearman(predictions, references))
        mse = close(sum((p - t) ** 2 for p, t in zip(predictions, references, strict=True)) / size)
        assert [*load_metric("glue", "stsb").compute(**given).items()] == [("pearson", r), ("spearmanr", rho)]
        for name, expected in {"pearson": r, "pearsonr": r, "spearman": rho, "spearmanr": rho, "mse": mse}.items():
            assert load_metric(name).compute(**given) == {name: expected}
        assert metrics_for(SCORE, 1).compute(**given) == {"pearson": r, "spearmanr": rho, "mse": mse}


# --- scikit-learn and SciPy --------------------------------------------------------------------------------------
def theirs(name: str, rows: tuple[Array, Array], **options: Any) -> float:
    """What scikit-learn says. A class with nothing to count is 0."""
    measure = getattr(sklearn.metrics, f"{name}_score")
    return float(measure(rows[1], rows[0], zero_division=0.0, **options))


def drawn_classes(rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows with few or many classes, some of which only one side has, and whose numbers may be any."""
    size = int(rng.integers(1, 60))
    names = rng.choice(np.array([-(2**40), -3, 0, 1, 2, 5, 77, 2**50]), int(rng.integers(1, 6)), replace=False)
    return rng.choice(names[: int(rng.integers(1, 6))], size), rng.choice(names, size)


def drawn_scores(rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows of any size, with ties, far from 0, or nearly equal."""
    size, scale = int(rng.integers(2, 60)), 10.0 ** int(rng.integers(-150, 150))
    predictions, references = rng.normal(size=(2, size)) + rng.choice([0, 3, 1e6])
    return np.round(predictions, int(rng.integers(0, 9))) * scale, np.round(references, int(rng.integers(0, 3)))


@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.parametrize("seed", range(4))
def test_classes_are_scored_to_the_last_bit_as_scikit_learn_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        rows = drawn_classes(rng)
        given = {"predictions": rows[0], "references": rows[1]}
        assert load_metric("accuracy").compute(**given)["accuracy"] == sklearn.metrics.accuracy_score(rows[1], rows[0])
        found = load_metric("matthews_correlation").compute(**given)["matthews_correlation"]
        assert found == sklearn.metrics.matthews_corrcoef(rows[1], rows[0])
        some = rng.choice(np.array([-3, 0, 1, 4, 77]), int(rng.integers(1, 6))).tolist()  # absent ones, and some twice
        for name, average in product(AVERAGED, ("micro", "macro", "weighted")):
            for labels in (None, some) if {*some} & {*rows[0].tolist(), *rows[1].tolist()} else (None,):
                found = load_metric(name, average).compute(**given, labels=labels)[name]
                assert found == theirs(name, rows, average=average, labels=labels), (rows, name, average, labels)
        two = rows[0] % 2, rows[1] % 2
        for name, positive in product(AVERAGED, (0, 1)):
            found = load_metric(name).compute(predictions=two[0], references=two[1], pos_label=positive)[name]
            assert found == theirs(name, two, average="macro", labels=[positive])


@pytest.mark.parametrize("seed", range(4))
def test_several_labels_are_scored_to_the_last_bit_as_scikit_learn_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        size, width = int(rng.integers(1, 40)), int(rng.integers(2, 6))
        rows = tuple((rng.random((size, width)) < rng.choice([0.0, 0.1, 0.5, 1.0], width)).astype(int) for _ in range(2))
        given = {"predictions": rows[0], "references": rows[1]}
        exact = load_metric("accuracy", "multilabel").compute(**given)["accuracy"]
        assert exact == sklearn.metrics.accuracy_score(rows[1], rows[0])
        some = rng.choice(width, int(rng.integers(1, width + 1))).tolist()
        for name, average in product(AVERAGED, ("micro", "macro", "weighted", "samples")):
            for labels in (None, some):
                found = load_metric(name, "multilabel").compute(**given, average=average, labels=labels)[name]
                assert found == theirs(name, rows, average=average, labels=labels), (rows, name, average, labels)


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_scored_as_scikit_learn_and_scipy_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    near = np.array([1.0, 1.0 + 2**-52, 1.0]), np.array([1.0, 2.0, 3.0])
    far = np.array([1e200, -1e200, 0.0]), np.array([1e-300, 2e-300, 0.0])
    for predictions, references in [near, far, *(drawn_scores(rng) for _ in range(80))]:
        given = {"predictions": predictions, "references": references}
        if np.ptp(predictions) and np.ptp(references):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of nearly equal scores
                wanted = scipy.stats.pearsonr(predictions, references).statistic
            assert load_metric("pearson").compute(**given)["pearson"] == close(float(wanted))
            wanted = scipy.stats.spearmanr(predictions, references).statistic
            assert load_metric("spearmanr").compute(**given)["spearmanr"] == close(float(wanted))
        if np.abs(predictions).max() < 1e150:
            wanted = sklearn.metrics.mean_squared_error(references, predictions)
            assert load_metric("mse").compute(**given)["mse"] == pytest.approx(wanted, rel=1e-12)


def test_worked_by_hand_and_noted() -> None:
    # Numbers that need no program: 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
    given = {"predictions": [1, 1, 1, 1, 0, 0, 0, 0, 0, 0], "references": [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]}
    assert load_metric("glue", "mrpc").compute(**given) == {"accuracy": 0.7, "f1": close(6 / 9)}
    assert load_metric("precision").compute(**given) == {"precision": 0.75}
    assert load_metric("recall").compute(**given) == {"recall": 0.6}
    assert load_metric("glue", "cola").compute(**given)["matthews_correlation"] == close(10 / math.sqrt(600))
    assert load_metric("spearman").compute(predictions=[1, 2, 3, 4], references=[1, 3, 2, 4])["spearman"] == close(0.8)
    metric = load_metric("f1")
    metric.compute(predictions=[0, 1], references=[0, 1], labels=[0])
    assert metric.notes == ['labels is not used with average="binary"']
    metric.compute(predictions=[0, 1], references=[0, 1], average="macro", pos_label=0)
    assert metric.notes == ['pos_label is not used with average="macro"']


# --- how rows come -----------------------------------------------------------------------------------------------
@pytest.mark.sample(24)
@pytest.mark.parametrize(("name", "config"), EVERY)
def test_pieces_give_the_same_to_the_last_bit(name: str, config: str | None) -> None:
    kind, make = EVERY[name, config]
    predictions, references = ROWS[kind]
    whole = make().compute(predictions=predictions, references=references)
    one_by_one, metric = make(), make()
    for prediction, reference in zip(predictions, references, strict=True):
        one_by_one.add(prediction=prediction, reference=reference)
    assert one_by_one.compute() == whole
    rng = np.random.default_rng(7)
    for _ in range(4):
        cuts = sorted(rng.integers(0, len(predictions), 6).tolist())  # some pieces are empty
        for start, stop in zip([0, *cuts], cuts, strict=False):
            metric.add_batch(predictions=predictions[start:stop].tolist(), references=tuple(references[start:stop]))
        assert metric.compute(predictions=predictions[cuts[-1] :], references=references[cuts[-1] :]) == whole


def test_tensors_lists_and_arrays_are_the_same_and_fetched_from_a_device() -> None:
    for kind, name in [("classes", "accuracy"), ("multilabel", "multilabel_f1"), ("scores", "pearson")]:
        predictions, references = (side.round() for side in ROWS[kind])  # as bfloat16 holds them
        whole = load_metric(name).compute(predictions=predictions, references=references)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.int32):
            tensor = torch.tensor(predictions, dtype=dtype)
            if tensor.is_floating_point():
                tensor.requires_grad_()
            assert load_metric(name).compute(predictions=tensor, references=torch.tensor(references)) == whole
            assert load_metric(name).compute(predictions=list(tensor), references=references.tolist()) == whole
            metric = load_metric(name)
            for row, true in zip(tensor, torch.tensor(references), strict=True):
                metric.add(prediction=row, reference=true)
            assert metric.compute() == whole

    class OnDevice:
        """What a tensor on a GPU is to us: it has to be detached, then fetched, and then it is an array."""

        dtype = "cuda.int64"
        steps: tuple[str, ...] = ()

        def __getattr__(self, step: str) -> Callable[[], Any]:
            if step not in ("detach", "cpu", "numpy"):
                raise AttributeError(step)
            self.steps = (*self.steps, step)
            return lambda: np.array([1, 0]) if self.steps[-3:] == ("detach", "cpu", "numpy") else self

    assert load_metric("accuracy").compute(predictions=OnDevice(), references=OnDevice()) == {"accuracy": 1.0}


def test_rows_are_copied_added_and_forgotten_and_a_fault_changes_nothing() -> None:
    metric = load_metric("accuracy")
    metric.add_batch(predictions=np.int64(1), references=1)
    metric.add_batch(predictions=[True, False], references=np.array([1.0, 1.0], np.float32))
    assert metric.compute() == {"accuracy": close(2 / 3)}
    metric, predictions = load_metric("accuracy"), np.array([1, 1])
    metric.add_batch(predictions=predictions, references=[1, 0])
    predictions[:] = 0  # rows are copied
    assert metric.compute(predictions=[0, 0], references=[0, 0]) == {"accuracy": 0.75}
    with pytest.raises(DataError, match="accuracy has no rows to score"):
        metric.compute()
    assert metric.compute(predictions=[1], references=[1]) == {"accuracy": 1.0}
    metric = load_metric("f1")
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    too_many = {"predictions": [2, 0], "references": [1, 1], "average": "binary"}
    for wrong in ({"predictions": [1]}, {"predictions": [1], "references": [1, 0]}, {"averge": "macro"}, too_many):
        with pytest.raises(GlassloopError):
            metric.compute(**wrong)
    assert metric.compute() == {"f1": close(2 / 3)}


# --- what is undefined -------------------------------------------------------------------------------------------
ODD: dict[str, list[tuple[Any, Any]]] = {
    "classes": [
        *(([0], [0]), ([1], [1]), ([0, 0], [0, 0]), ([1, 1], [1, 1])),
        *(([0, 0], [1, 1]), ([1, 1], [0, 1]), ([2], [2])),
    ],
    "multilabel": [([[0]], [[0]]), ([[0, 0], [0, 0]], [[0, 0], [0, 0]]), ([[1, 1]], [[1, 1]]), ([[0, 0]], [[1, 0]])],
    "scores": [
        *(([1.0], [1.0]), ([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [0.1, 0.1, 0.1]), ([0, 0], [0, 0])),
        *(([1.0, 1.0 + 2**-52, 1.0], [1, 2, 3]), ([1e100, -1e100, 0], [1e-300, 2e-300, 0])),
    ],
}


@pytest.mark.sample(24)
@pytest.mark.parametrize(("name", "config"), EVERY)
def test_never_nan_never_a_warning(name: str, config: str | None, capfd: Any, recwarn: Any) -> None:
    kind, make = EVERY[name, config]
    for predictions, references in ODD[kind]:
        metric = make()
        result = metric.compute(predictions=predictions, references=references)
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert {type(value) for value in result.values()} == {float}
        assert all(isinstance(note, str) and "\n" not in note for note in metric.notes)
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_notes_say_what_was_undefined() -> None:
    for path, config, predictions, references, result, note in [
        ("pearson", None, [2, 2], [1, 2], 0.0, "if all predictions are equal; reported as 0"),
        ("spearmanr", None, [1, 2], [3, 3], 0.0, "if all references are equal; reported as 0"),
        ("pearsonr", None, [5], [3], 0.0, "if all predictions are equal; reported as 0"),
        ("matthews_correlation", None, [1, 1], [1, 1], 0.0, "if all predictions are equal; reported as 0"),
        ("f1", None, [0, 0], [0, 0], 0.0, "for class 1 with no prediction and no reference; reported as 0"),
        ("precision", None, [0, 0], [0, 1], 0.0, "for class 1 with no prediction; reported as 0"),
        ("recall", None, [0, 1], [0, 0], 0.0, "for class 1 with no reference; reported as 0"),
        ("precision", "macro", [0, 0], [0, 1], 0.25, "for a class with no prediction; counted as 0"),
        ("f1", "samples", [[1], [0]], [[1], [0]], 0.5, "for a row with no prediction and no reference; counted as 0"),
        ("f1", "macro", [0, 1, 2], [0, 1, 1], close(5 / 9), None),
        ("f1", None, [0, 0], [0, 1], 0.0, None),
        ("recall", "weighted", [0, 2], [0, 1], 0.5, None),
    ]:
        metric = load_metric(path, config)
        assert list(metric.compute(predictions=predictions, references=references).values()) == [result]
        assert metric.notes == ([f"{path} is undefined {note}"] if note else [])
        rows = [[0, 1], [1, 1]] if config == "samples" else [0, 1]
        metric.compute(predictions=rows, references=rows)
        assert metric.notes == []


# --- what is refused ---------------------------------------------------------------------------------------------
def test_unknown_names_and_settings_are_refused() -> None:
    for path, config, texts in [
        ("acuracy", None, ['"acuracy" is not a known metric; did you mean "accuracy"?', "choose one of: glue, accuracy, f1,"]),
        ("F1", None, ['"F1" is not a known metric; did you mean "f1"?', "multilabel_f1"]),
        ("bleu\x1b[2J", None, [r'"bleu\x1b[2J" is not a known metric']),
        ("glue", "sts-b", ['"sts-b" is not a known GLUE task; did you mean "stsb"?', "choose one of: cola, ax, mrpc", "hans"]),
        ("glue", "MRPC", ['did you mean "mrpc"?']),
        ("glue", None, ['"glue" needs a task', "mnli_mismatched"]),
        ("f1", "makro", ['"makro" is not a known configuration of f1; did you mean "macro"?', "multilabel"]),
        ("mse", "macro", ['"macro" is not a known configuration of mse', "omit it"]),
    ]:
        with pytest.raises(SettingsError) as caught:
            load_metric(path, config)
        assert all(text in str(caught.value) for text in texts), str(caught.value)
    for path, config, rows, options, text in [
        ("accuracy", None, None, {}, "only one of predictions and references"),
        ("f1", None, [0, 1, 2], {}, "compares class 1 with one other class, but there are 0, 2"),
        ("f1", None, [0, 1, 2], {}, 'use average="macro"'),
        ("f1", None, [0, 2], {}, "compares class 1 with one other class, but there are 0, 2"),
        ("glue", "mrpc", [0, 1, 2], {}, 'load_metric("f1", "macro")'),
        ("f1", "multilabel", [[0, 1]], {}, 'use average="macro"'),
        ("f1", None, [0, 1], {"average": "samples"}, "does not fit one class number per row"),
        ("f1", None, [0, 1], {"average": None}, '"None" is not a known average'),
        ("f1", None, [0, 1], {"average": "makro"}, 'did you mean "macro"?'),
        ("f1", "macro", [0, 1], {"labels": []}, "labels=[] does not name labels of the rows"),
        ("f1", "samples", [[0, 1]], {"labels": [2]}, "labels=[2] does not name labels of the rows"),
        ("f1", None, [0, 1], {"averge": "x"}, 'not a known option of f1; did you mean "average"?'),
        ("mse", None, [0, 1], {"squared": False}, '"squared" is not a known option of mse'),
    ]:
        with pytest.raises(SettingsError) as caught:
            load_metric(path, config).compute(predictions=rows, references=rows or [1], **options)
        assert text in str(caught.value)


def test_data_is_refused_and_a_fault_named_with_its_row_over_all_batches() -> None:
    for path, config, predictions, references, text in [
        ("accuracy", None, [1, 2, 3], [1, 2], "there are 3 predictions and 2 references"),
        ("accuracy", None, [], [1], "there are 0 predictions and 1 references"),
        ("accuracy", None, [], [], "accuracy has no rows to score"),
        ("accuracy", None, [[0.1, 0.9]], [1], "the shape (1, 2), but accuracy takes one class number per row"),
        ("accuracy", None, [[0.1, 0.9]], [1], "take argmax(axis=-1) first"),
        ("accuracy", None, [[0, 1]], [1], 'or load the metric with "multilabel"'),
        ("accuracy", None, [[]], [1], "the shape (1, 0)"),
        ("glue", "sst2", [[0.1, 0.9]], [1], "take argmax(axis=-1) first"),
        ("pearson", None, [[0.1], [0.9]], [1, 2], "take squeeze(-1) first"),
        ("pearson", None, [1, 2, math.nan], [1, 2, 3], "predictions row 2 (from 0) is nan"),
        ("mse", None, [1, 2, 3], [1, -math.inf, 3], "references row 1 (from 0) is -inf"),
        ("mse", None, [1e200], [-1e200], "mse is too large for a float"),
        ("accuracy", None, [0, math.nan], [0, 1], "predictions row 1 (from 0) is nan"),
        ("accuracy", None, [0, 1e30], [0, 1], "predictions row 1 (from 0) is 1e+30"),
        ("accuracy", None, [0, 1], [0, -100], "references row 1 (from 0) is -100, the label that a loss ignores"),
        ("multilabel_f1", None, [[0, 1]], [[-100, 1]], "references row 0 (from 0) is -100"),
        ("accuracy", None, [0.7, 1.0], [0, 1], "row 0 (from 0) is 0.7, but accuracy takes one class number"),
        ("accuracy", None, ["a"], ["a"], "the predictions are not numbers: \"['a']\""),
        ("accuracy", None, [None], [1], "the predictions are not numbers"),
        ("accuracy", None, [[1], [1, 2]], [1, 2], "the predictions are rows of different lengths"),
        ("multilabel_f1", None, [[0.2, 0.9]], [[0, 1]], "compare with a threshold first"),
        ("multilabel_f1", None, [[2, 0]], [[0, 1]], "is 2, but multilabel_f1 takes rows of 0 and 1"),
        ("multilabel_f1", None, [0, 1], [0, 1], "use one row per example"),
        ("multilabel_f1", None, [[0, 1]], [[0, 1, 1]], "rows of different widths: 2, 3"),
        ("glue", "rte", [0, 1], [-1, -1], "GLUE hides the labels of its test split"),
        ("glue", "stsb", [0.5, 1], [-1, -1], "GLUE hides the labels of its test split"),
    ]:
        with pytest.raises(DataError) as caught:
            load_metric(path, config).compute(predictions=predictions, references=references)
        assert text in str(caught.value)
    metric = load_metric("pearson")
    metric.add_batch(predictions=[1, 2], references=[1, 2])
    metric.add(prediction=3, reference=3)
    with pytest.raises(DataError, match=r"references row 4 \(from 0\) is nan"):
        metric.add_batch(predictions=[1, 2], references=[1, math.nan])
    with pytest.raises(DataError, match=r"predictions have the shape \(1, 3\)"):
        load_metric("accuracy").add(prediction=[0.1, 0.7, 0.2], reference=1)
    metric = load_metric("multilabel_f1")
    metric.add(prediction=[0, 1], reference=[0, 1])
    with pytest.raises(DataError, match="rows of different widths: 2, 3"):
        metric.add(prediction=[0, 1, 1], reference=[0, 1, 1])
    with pytest.raises(DataError, match="the labels are not numbers"):
        load_metric("f1").compute(predictions=[0, 1], references=[0, 1], pos_label="yes")


# --- tasks -------------------------------------------------------------------------------------------------------
def test_decisions_and_what_cannot_be_decided() -> None:
    logits = np.array([[1, 3, 2], [5, -1, 5]], np.float32)
    assert decide(logits, CLASSES).tolist() == [1, 0]
    wild = np.array([[-1e4, 1e4, 0.0], [-0.1, 0.1, 3.0]], np.float16)
    assert decide(wild, SEVERAL).tolist() == [[0, 1, 1], [0, 1, 1]]
    assert decide(wild, SEVERAL, threshold=0.9).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert decide(np.array([[-1e-9]], np.float32), SEVERAL).tolist() == [[0]]
    assert decide(np.array([[0.5], [2.0]]), SCORE).tolist() == decide(np.array([0.5, 2.0]), SCORE).tolist() == [0.5, 2.0]
    assert decide(np.array([[0.5]]), SCORE).shape == (1,), "np.squeeze would lose the row"
    with np.errstate(all="raise"):
        wild = np.array([[-1e308, 1e308, -np.inf, np.inf, -745.2, 710.0]])
        assert decide(wild, SEVERAL).tolist() == [[0, 1, 0, 1, 0, 1]], "without overflow"
    with pytest.raises(SettingsError, match='"regresion" is not a known task; did you mean "regression"'):
        metrics_for("regresion", 1)
    for task, outputs in ((CLASSES, 1), (SEVERAL, 0), (SCORE, 2)):
        with pytest.raises(SettingsError, match=f"{task} cannot have num_labels={outputs}"):
            metrics_for(task, outputs)
        with pytest.raises(DataError, match=f"do not fit {task}"):
            decide(np.zeros((3, outputs)), task)
    for threshold in (0, 1, 1.5, math.nan):
        with pytest.raises(SettingsError, match="is not a probability"):
            decide(np.zeros((3, 2)), SEVERAL, threshold=threshold)


def test_decisions_suit_the_metrics() -> None:
    for task in [CLASSES, SEVERAL, SCORE]:
        outputs = 1 if task == SCORE else 3
        decided = decide(np.random.default_rng(0).normal(size=(40, outputs)), task)
        metric = metrics_for(task, outputs)
        assert metric.name == task
        result = metric.compute(predictions=decided, references=decided)
        assert result.pop("mse", 0.0) == 0.0
        assert list(result.values()) == [close(1.0)] * len(result)
        with pytest.raises(DataError, match=r"row 1 .* contains NaN"):
            decide(np.array([[0.0] * outputs, [math.nan] * outputs]), task)


def test_one_class_of_several_and_chosen_keys() -> None:
    predictions, references = class_rows(0, 90, (0.2, 0.3, 0.5))
    metric = metrics_for(CLASSES, 3, keys=("f1", "matthews_correlation"), positive=2)
    assert metric.compute(predictions=predictions, references=references) == {
        "f1": close(from_counts("f1", *counts(predictions, references, 2))),
        "matthews_correlation": close(matthews(predictions, references)),
    }
    for task, positive in ((CLASSES, 3), (CLASSES, -1), (SCORE, 0)):
        with pytest.raises(SettingsError, match=f"positive={positive} is not a class"):
            metrics_for(task, 1 if task == SCORE else 3, positive=positive)
    # 1,000 ok against 20 complaint: always answering ok has an F1 of 0.99 for ok, and of 0 for complaint.
    rows = {"references": np.array([1] * 1000 + [0] * 20), "predictions": np.ones(1020, dtype=int)}
    found = [Measures(("f1",), name).metric(CLASSES, NAMES).compute(**rows)["f1"] for name in NAMES]
    assert found == [0.0, pytest.approx(2000 / 2020)]


@pytest.mark.slow
def test_the_module_imports_nothing_heavy() -> None:
    """On its own, past what the package imports: a package that imports torch must not hide it."""
    folder = Path(metrics_module.__file__).parents[1]
    program = f"""
import sys, types
package = types.ModuleType("glassloop"); package.__path__ = [{str(folder)!r}]; sys.modules["glassloop"] = package
from glassloop.scores.metrics import load_metric
for task in {list(metrics_module.GLUE)!r}:
    print(load_metric("glue", task).compute(predictions=[0, 1, 1], references=[0, 1, 0]))
print(load_metric("f1", "macro").compute(predictions=[0, 1, 2], references=[0, 1, 0]))
print(load_metric("spearmanr").compute(predictions=[0, 1, 2], references=[0, 1, 0]))
assert not {{"torch", "evaluate", "datasets", "sklearn", "scipy"}} & set(sys.modules), "imported at all"
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# --- the metrics of a run: of which class F1 is, what they are called, and what beats the baseline --------------------
MACRO = Measures(("accuracy", "f1_macro"))
NAMES = ("complaint", "ok")


def test_the_default() -> None:
    for task, names, measures in [
        (CLASSES, NAMES, MACRO),  # nobody has chosen a class
        (CLASSES, ("no", "yes"), MACRO),
        (CLASSES, ("0", "1"), Measures(("accuracy", "f1"), "1")),
        (CLASSES, ("1", "0"), Measures(("accuracy", "f1"), "1")),
        (CLASSES, ("False", "True"), Measures(("accuracy", "f1"), "True")),
        (CLASSES, ("LABEL_0", "LABEL_1"), Measures(("accuracy", "f1"), "LABEL_1")),
        (CLASSES, ("1", "2"), MACRO),
        (CLASSES, ("0", "1", "2"), MACRO),
        (SEVERAL, ("0", "1"), Measures(("f1_micro", "f1_macro", "exact_match"))),
        (SCORE, ("LABEL_0",), Measures(("pearson", "spearmanr", "mse"))),
    ]:
        assert metrics_module.default_measures(task, names) == chosen_measures(None, task, names, None) == measures


def test_the_metrics_of_a_run_are_chosen_recorded_and_refused(says) -> None:
    assert chosen_measures(None, CLASSES, NAMES, "complaint") == Measures(("accuracy", "f1"), "complaint")
    assert chosen_measures(None, CLASSES, ("0", "1"), "0") == Measures(("accuracy", "f1"), "0")
    assert chosen_measures(None, CLASSES, (*NAMES, "other"), "ok") == Measures(("accuracy", "f1", "f1_macro"), "ok")
    correlation = Measures(("matthews_correlation",))
    assert chosen_measures(correlation, CLASSES, NAMES, "ok") == Measures(("matthews_correlation", "f1"), "ok")
    assert chosen_measures(correlation, CLASSES, NAMES, None) == correlation
    with says('positive_label is "complaints", not one of complaint, ok; did you mean "complaint"?'):
        chosen_measures(None, CLASSES, NAMES, "complaints")
    for task in (SEVERAL, SCORE):
        with says(f"positive_label is set, but the task is {task}"):
            chosen_measures(None, task, NAMES, "ok")
    assert recorded_measures(("accuracy", "f1"), "ok", CLASSES, NAMES) == Measures(("accuracy", "f1"), "ok")
    assert recorded_measures(("pearson", "spearmanr"), None, SCORE, ("LABEL_0",)) == Measures(("pearson", "spearmanr"))
    assert recorded_measures((), None, CLASSES, NAMES) == MACRO
    wrong = [("auc", None), ("f1", None), ("f1", "no"), ("accuracy", "ok"), ("accuracy", "no"), ("pearson", None)]
    for key, positive in wrong:
        with pytest.raises(ModelError, match="lists metrics that do not fit its model"):
            recorded_measures((key,), positive, CLASSES, NAMES)
    for wanted in (None, "loss", "eval_loss", "accuracy", "eval_f1_macro", "eval_runtime"):
        metrics_module.refuse_unknown_metric(wanted, MACRO)
    problem = 'metric_for_best_model is "{}", but an evaluation computes loss, accuracy, f1_macro'
    with says(problem.format("f1"), "set positive_label to the class whose F1 counts, or use f1_macro"):
        metrics_module.refuse_unknown_metric("f1", MACRO)
    with says(problem.format("eval_auc"), "use one of loss, accuracy, f1_macro"):
        metrics_module.refuse_unknown_metric("eval_auc", MACRO)
    metrics = {"eval_loss": 1.0, "eval_b_f1": 0.5, "eval_runtime": 2.0, "eval_b_runtime": 3.0}
    assert metrics_module.short_metrics(metrics) == {"loss": 1.0, "b_f1": 0.5}
    assert metrics_module.short_metrics({"eval_b_f1": 1.0, "eval_b_runtime": 1.0}, "eval_b") == {"f1": 1.0}


def test_titles_name_the_class_and_what_is_no_better_than_the_baseline() -> None:
    for key, title in [
        *[("f1", "f1 (equivalent)"), ("f1_macro", "f1 (macro)"), ("accuracy", "accuracy"), ("loss", "loss")],
        *[("mismatched_accuracy", "accuracy, mismatched"), ("mismatched_f1", "f1 (equivalent), mismatched")],
        *[("mismatched_loss", "loss, mismatched"), ("my_own", "my_own")],
    ]:
        assert Measures(("accuracy", "f1", "f1_macro"), "equivalent").title(key) == title
    assert Measures(("f1",)).title("f1") == "f1"
    for metrics, baseline, keys in [
        ({"loss": 9.0, "accuracy": 0.7}, {"accuracy": 0.6}, []),
        ({"accuracy": 0.6, "f1": 0.1}, {"accuracy": 0.6}, ["accuracy"]),
        ({"accuracy": 0.5, "f1": 0.0}, {"accuracy": 0.6}, ["accuracy", "f1"]),
        ({"accuracy": 0.7, "b_accuracy": 0.1}, {"accuracy": 0.6, "b_accuracy": 0.2}, ["b_accuracy"]),
        ({"mse": 1.0, "pearson": 0.2}, {"mse": 2.0}, []),
        ({"mse": 2.0, "pearson": -0.2}, {"mse": 2.0}, ["mse", "pearson"]),
    ]:
        assert metrics_module.no_better(metrics, baseline, Measures(("accuracy", "f1", "pearson", "mse"), "x")) == keys
