"""`glassloop inspect`: show splits, labels, lengths and padding of a data set, and what is wrong in its rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from glassloop.base.errors import SettingsError, counted, listed, printable, shortened, visible
from glassloop.base.files import user_path, write_text
from glassloop.base.output import CommandResult, say, show, stage
from glassloop.cli.options import DATA_HELP, Device, Json, given_for, with_settings
from glassloop.data.interfaces import Tokenizer
from glassloop.settings.training import FINE_TUNE, FROZEN, DataSettings, TrainingArguments, data_settings
from glassloop.training.progress import starting

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from glassloop.data.encoding import Encoding, LengthLimit
    from glassloop.data.examples import Examples
    from glassloop.diagnosis.findings import Diagnosis
    from glassloop.diagnosis.learning_curve import LearningCurve

DEEP_HELP = "Also look for wrong labels, duplicates, leaks between splits, broken texts and shortcuts, by embeddings."
SUGGESTIONS_HELP = "CSV file for the suspected label errors, to edit and pass to glassloop clean --relabel."
FAIL_HELP = "Exit with status 8 if --deep finds one of these: codes such as GL101, or error, warning, info."
SAMPLE_HELP = "Number of rows to embed at most, drawn at random. Default: 20,000, on a GPU 100,000."
CURVE_HELP = "Measure how the score grows with the rows, and what more labelled rows would bring."
METHOD_HELP = "How --deep predicts rows it did not see: frozen, regressions on embeddings, or fine_tune. Default: frozen."
FOLDS_HELP = "Number of trainings of --method fine_tune, each without one fold. Default: 5."
USUAL_FOLDS = 5
SHOWN_SUSPECTS = 10
SHOWN_CLASSES = 10
HISTOGRAM_BINS = 10
BAR_WIDTH = 40
SHOWN_PADDING = 4
BLOCKS = "▏▎▍▌▋▊▉█"


@with_settings(DataSettings)
def inspect(
    data: Annotated[str, Argument(help=DATA_HELP.format("show"))] = "quickstart",
    model: Annotated[str, Option(help="Model whose tokenizer and, with --deep, whose embeddings to use.")] = "quickstart",
    max_length: Annotated[int | None, Option(help="Maximum number of tokens per row.")] = None,
    batch_size: Annotated[int, Option(help="Batch size used to measure padding.")] = 8,
    deep: Annotated[bool, Option("--deep", help=DEEP_HELP)] = False,
    learning_curve: Annotated[bool, Option("--learning_curve", help=CURVE_HELP)] = False,
    out: Annotated[str | None, Option("-o", "--out", help="HTML file for all findings of --deep, with their rows.")] = None,
    suggestions: Annotated[str | None, Option(help=SUGGESTIONS_HELP)] = None,
    fail_on: Annotated[list[str] | None, Option(metavar="<str>", help=FAIL_HELP)] = None,
    method: Annotated[str | None, Option(metavar="<str>", help=METHOD_HELP)] = None,
    folds: Annotated[int | None, Option(metavar="<int>", help=FOLDS_HELP)] = None,
    sample: Annotated[int | None, Option(min=10, metavar="<int>", help=SAMPLE_HELP)] = None,
    device: Device = "auto",
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Show a data set and, with --deep, what is wrong in it."""
    with starting():
        from glassloop.data.sources import load_examples
        from glassloop.models.interface import length_limit
        from glassloop.models.loading import load_config, load_tokenizer
        from glassloop.training.evaluate import data_content

    given = given_for(DataSettings, options)
    only_deep = {
        "method": method,
        "folds": folds,
        "out": out,
        "suggestions": suggestions,
        "fail_on": fail_on,
        **({} if learning_curve else {"sample": sample}),
    }
    if not deep and (names := [f"--{name}" for name, value in only_deep.items() if value is not None]):
        raise SettingsError(f"{listed(names)} needs --deep", "add --deep")
    if method not in (None, FROZEN, FINE_TUNE):
        raise SettingsError(f"--method is {visible(method)}", f"use {FROZEN} or {FINE_TUNE}")
    if folds is not None and method != FINE_TUNE:
        raise SettingsError(f"--folds needs --method {FINE_TUNE}", "omit --folds: regressions have five")
    trained = (folds or USUAL_FOLDS) if method == FINE_TUNE else None
    curve = measured_curve(data, model, max_length, given, sample, device) if learning_curve else None
    if deep:
        return inspect_deep(data, model, max_length, given, out, suggestions, fail_on or [], sample, device, curve, trained)
    if curve:
        return CommandResult({"data": data, "model": model, "learning_curve": curve})
    examples = load_examples(data, **asdict(data_settings(given)))
    with stage("loading the tokenizer"):
        tokenizer = load_tokenizer(model)
        limit = length_limit(examples, tokenizer, load_config(model), max_length)
    encoded = show_data(examples, tokenizer, limit, batch_size, TrainingArguments.seed, (data, model))
    return CommandResult(data_content(examples, encoded, data, model, limit))


def inspect_deep(
    data: str, model: str, max_length: int | None, given: dict[str, object], out: str | None, suggestions: str | None,
    fail_on: list[str], sample: int | None, device: str, curve: LearningCurve | None, folds: int | None,
) -> CommandResult:  # fmt: skip
    """Find what is wrong in the rows, print it, and write the files that were asked for. `folds` are those of trainings."""
    from glassloop.data.sources import load_examples
    from glassloop.diagnosis import cleaning, findings, page
    from glassloop.diagnosis.fine_tuning import held_out_by_training

    fails = findings.wanted_codes(fail_on)
    page_path, list_path = (user_path(name) if name is not None else None for name in (out, suggestions))
    if list_path:
        cleaning.refuse_suggestions(list_path)
    # A held-out part would only move findings from one split to another: each file is one split.
    examples = load_examples(data, **asdict(data_settings({"validation_share": 0, **given})))
    held_out, method = (held_out_by_training(folds, device), FINE_TUNE) if folds is not None else (None, FROZEN)
    found = findings.diagnose(
        examples, model, max_length=max_length, device=device, most_rows=sample, held_out=held_out, method=method
    )
    show_findings(found)
    if page_path:
        write_text(page_path, page.inspection_page(found, data, examples, curve))
    if list_path:
        cleaning.write_suggestions(list_path, found.suspects, examples.columns.texts)
    for path in filter(None, (page_path, list_path)):
        show(f"→ {path}")
    failed = sorted({finding.code for finding in found.findings} & fails)
    if failed:
        say(f"--fail_on: found {listed(failed, 30)}")
    content = {"data": data, "model": model, "task": examples.task, "columns": examples.columns, **found.content()}
    content |= {"out": page_path, "suggestions": list_path, "failed": failed, "learning_curve": curve}
    return CommandResult(content, findings.FOUND_STATUS if failed else 0)


def measured_curve(
    data: str, model: str, max_length: int | None, given: dict[str, object], sample: int | None, device: str
) -> LearningCurve:
    """Measure the learning curve and print it with what more rows are expected to bring."""
    from rich.console import Console

    from glassloop.data.sources import load_examples
    from glassloop.diagnosis import learning_curve as curves

    examples = load_examples(data, **asdict(data_settings({"validation_share": 0, **given})))
    curve = curves.learning_curve(examples, model, max_length=max_length, device=device, most_rows=sample)
    console = Console()
    console.print(cell(curve.sentence(), "bold"))
    table = titled_table("Regression on the embeddings", "training rows", curve.metric, "95% interval", "gain")
    for point in curve.points:
        table.add_row(f"{point.rows:,}", f"{point.mean:.4f}", "", "")
    for one in curve.forecasts:
        gain = f"{curves.points_of(one.gain)} points ({curves.span_of(one)})"
        table.add_row(cell(f"{one.rows:,}", "dim"), f"{one.score:.4f}", f"{one.low:.4f} to {one.high:.4f}", gain)
    console.print(table)
    gaining = [one for one in curve.classes if one.low > 0][:SHOWN_CLASSES]
    if gaining:
        classes = titled_table("Classes that gained when the rows were doubled", "label", "rows", "recall before", "after")
        for label in gaining:
            classes.add_row(cell(label.label), f"{label.rows:,}", f"{label.before:.3f}", f"{label.after:.3f}")
        console.print(classes)
    return curve


def show_findings(found: Diagnosis) -> None:
    """Print a table of all findings, and the rows that are suspected most."""
    from rich.console import Console

    from glassloop.diagnosis.findings import summary

    console = Console()
    console.print(cell(summary(found), "bold"))
    table = titled_table("Findings", "code", "finding", "severity", "split", "rows", "detail")
    for column in table.columns[1:]:
        column.justify = "left"
    table.columns[4].justify = "right"
    styles = {"error": "red", "warning": "yellow"}
    for finding in found.findings:
        about = finding.about
        shown = (cell(finding.code), cell(about.title), cell(about.severity, styles.get(about.severity, "dim")))
        table.add_row(*shown, cell(finding.split), f"{len(finding.rows):,}", cell(finding.told, "dim"))
    if found.findings:
        console.print(table)
    for row in found.suspects[:SHOWN_SUSPECTS]:
        suggested = "" if row.probability is None else f", probability {row.probability:.2f}"
        told = f"{row.split} {row.row:,}: {row.label} → {row.suggested}{suggested}  {' | '.join(row.texts)}"
        console.print(cell(shortened(told, console.width)))
    if len(found.suspects) > SHOWN_SUSPECTS:
        console.print(
            cell(f"and {len(found.suspects) - SHOWN_SUSPECTS:,} more suspected label errors: --out, --suggestions", "dim")
        )


def show_data(
    examples: Examples, tokenizer: Tokenizer, limit: LengthLimit, batch_size: int, seed: int, names: tuple[str, str]
) -> dict[str, Encoding]:
    """Print the overview and return the encoded splits. `names` are those of the data and of the model."""
    from rich.console import Console
    from rich.padding import Padding

    from glassloop.data.encoding import encode, notes_on

    console = Console()
    encoded = encode(examples, tokenizer, limit.max_length)
    split = "train" if "train" in encoded else next(iter(encoded))
    lengths = encoded[split].lengths
    columns = examples.columns
    facts = {
        "data": names[0],
        "task": examples.task.replace("_", " "),
        "text": columns.text + (f" + {columns.text_pair}" if columns.text_pair else ""),
        "label": ", ".join(columns.label),
        "model": f"{names[1]}, at most {limit.max_length} tokens",
    }
    parts: list[RenderableType | None] = [
        grid(2, *([cell(name, "dim"), cell(value)] for name, value in facts.items())),
        splits_table(examples, encoded),
        features_table(examples, split),
        labels_table(examples),
        cell(f"Tokens per row of {split}", "bold"),
        histogram(lengths),
        padding_table(lengths, batch_size, seed, split),
        cell(f"First row of {split}, padded in a batch of {min(batch_size, len(lengths))}", "bold"),
        example_table(encoded[split], tokenizer, batch_size, console.width),
    ]
    if notes := [*examples.notes, *notes_on(encoded, limit)]:
        parts += [cell("Notes", "bold"), grid(0, *([cell(f"• {note}")] for note in notes))]
    for part in parts:
        if part is not None:
            console.print(Padding(part, (0, 0, 0 if getattr(part, "style", None) == "bold" else 1, 0)))
    return encoded


def cell(value: object, style: str = "") -> Text:
    from glassloop.markup.terminal import text

    return text(value, style)


def titled_table(title: str, *columns: str) -> Table:
    from glassloop.markup.terminal import bare_table

    table = bare_table(*columns, right=1)
    table.title, table.title_justify, table.title_style = cell(title), "left", "bold"
    return table


def grid(space: int, *rows: list[Text]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, space, 0, 0))
    for row in rows:
        table.add_row(*row)
    return table


def splits_table(examples: Examples, encoded: dict[str, Encoding]) -> Table:
    table = titled_table("Splits", "split", "rows", "mean tokens", "longest", "truncated", "duplicates", "also in train")
    for name, fact in examples.facts.items():
        lengths, truncation = encoded[name].lengths, encoded[name].truncation
        cut = f"{truncation.num_rows:,}"
        if truncation.num_rows and examples.columns.text_pair:
            cut += f" ({truncation.num_first:,} first, {truncation.num_second:,} second)"
        if truncation.num_shortened:
            cut += f"; {counted(truncation.num_shortened, 'text', 'texts')} shortened before tokenizing"
        sizes = (f"{fact.num_rows:,}", f"{lengths.mean():.1f}", f"{lengths.max():,}", cut, f"{fact.num_duplicates:,}")
        table.add_row(cell(name), *sizes, "" if name == "train" else f"{fact.num_in_train:,}")
    return table


def features_table(examples: Examples, split: str) -> Table:
    table = titled_table("Columns")
    for name, feature in examples.splits[split].features.items():
        kind = type(feature).__name__
        described = str(getattr(feature, "dtype", None) or kind)
        if names := getattr(getattr(feature, "feature", feature), "names", None):
            described = f"{kind}({', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
        table.add_row(cell(name), cell(described, "dim"))
    return table


def labels_table(examples: Examples) -> Table | None:
    """Return a table with the label counts of each split. Of many labels, only the most frequent ones are included."""
    from glassloop.data.examples import SHOWN_LABELS

    if not examples.labels:
        return None
    labelled = {name: fact for name, fact in examples.facts.items() if not fact.unlabelled}
    table = titled_table("Labels", "label", *labelled)
    labels = [*enumerate(examples.labels.names)]
    if hidden := max(0, len(labels) - SHOWN_LABELS):
        frequent = next((fact.label_counts for fact in labelled.values()), {})
        labels = sorted(labels, key=lambda entry: -frequent.get(entry[1], 0))[:SHOWN_LABELS]
    for number, name in labels:
        counts = [(fact.label_counts.get(name, 0), max(fact.num_rows, 1)) for fact in labelled.values()]
        table.add_row(cell(f"{number}  {name}"), *(f"{count:,}  {count / num_rows:>4.0%}" for count, num_rows in counts))
    if hidden:
        table.add_row(f"and {hidden:,} more")
    return table


def histogram(lengths: np.ndarray) -> Table:
    import numpy as np

    start = int(lengths.min())
    step = max(1, -(-(int(lengths.max()) - start + 1) // HISTOGRAM_BINS))
    counts = np.bincount((lengths - start) // step)
    table = grid(1)
    for style in ("", "cyan", "dim"):
        table.add_column(justify="left" if style == "cyan" else "right", style=style)
    for place, count in enumerate(counts):
        low = start + place * step
        eighths = round(count / counts.max() * BAR_WIDTH * 8)
        bar = "█" * (eighths // 8) + (BLOCKS[eighths % 8 - 1] if eighths % 8 else "")
        table.add_row(f"{low}–{low + step - 1}" if step > 1 else str(low), bar, f"{count:,}")
    return table


def padding_table(lengths: np.ndarray, batch_size: int, seed: int, split: str) -> Table:
    from glassloop.data.batches import epoch_order, padding_waste

    table = titled_table(f"Padding of {split} in batches of {batch_size}")
    shuffled = epoch_order(len(lengths), batch_size, seed=seed)
    grouped = epoch_order(len(lengths), batch_size, seed=seed, lengths=lengths)
    wastes = {
        "all rows padded to the longest row": 1 - float(lengths.mean()) / float(lengths.max()),
        "each batch padded to its longest row": padding_waste(lengths, shuffled),
        "each batch padded to its longest row, grouped by length": padding_waste(lengths, grouped),
    }
    for name, waste in wastes.items():
        table.add_row(name, cell(f"{waste:6.1%}", "green" if waste < 0.1 else "yellow"))
    return table


def example_table(encoding: Encoding, tokenizer: Tokenizer, batch_size: int, width: int) -> Table:
    """Return one row as the model gets it: tokens, ids, token types and attention mask, one below the other."""
    from rich.cells import cell_len

    from glassloop.data.batches import PaddingCollator

    numbers = list(range(min(batch_size, len(encoding.rows))))
    columns = {key: encoding.rows[numbers][key] for key in encoding.rows.column_names if key != "labels"}
    batch = {key: values[0].tolist() for key, values in PaddingCollator(tokenizer)(columns).items()}
    lines = {"token": tokenizer.convert_ids_to_tokens(batch["input_ids"]), "id": batch["input_ids"]}
    lines |= {"type": batch["token_type_ids"]} if "token_type_ids" in batch else {}
    lines["mask"] = batch["attention_mask"]
    cells = list(zip(*([printable(str(value)) for value in line] for line in lines.values()), strict=True))
    hidden = max(0, len(cells) - int(encoding.lengths[0]) - SHOWN_PADDING)
    blocks: list[list[tuple[tuple[str, ...], int]]] = [[]]  # of columns beside each other, with their widths
    for column in cells[: len(cells) - hidden]:
        size = max(map(cell_len, column)) + 1
        if blocks[-1] and sum(used for _, used in blocks[-1]) + size > width - 6:
            blocks.append([])
        blocks[-1].append((column, size))
    table = grid(1)
    for block in blocks:
        for place, name in enumerate(lines):
            row = cell(f"{name:<6}", "dim")
            for column, size in block:
                blanks = " " * (size - 1 - cell_len(column[place]))
                row.append(f"{blanks}{column[place]} ", style="bold cyan" if name == "token" else "")
            table.add_row(row)
        table.add_row("")
    if hidden:
        table.add_row(cell(f"… and {hidden} more {tokenizer.pad_token}", "dim"))
    return table
