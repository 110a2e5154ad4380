"""`glassloop data`: show the splits, labels, lengths and padding of a data set."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from glassloop.base.errors import counted, printable
from glassloop.base.output import CommandResult, stage
from glassloop.cli.options import DATA_HELP, Json, given_for, with_settings
from glassloop.data.interfaces import Tokenizer
from glassloop.settings.training import DataSettings, TrainingArguments, data_settings
from glassloop.training.progress import starting

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType
    from rich.table import Table

    from glassloop.data.encoding import Encoding, LengthLimit
    from glassloop.data.examples import Examples

HISTOGRAM_BINS = 10
BAR_WIDTH = 40
SHOWN_PADDING = 4
BLOCKS = "▏▎▍▌▋▊▉█"


@with_settings(DataSettings)
def describe_data(
    data: Annotated[str, typer.Argument(help=DATA_HELP.format("show"))] = "quickstart",
    model: Annotated[str, typer.Option(help="Model whose tokenizer to use.")] = "quickstart",
    max_length: Annotated[int | None, typer.Option("--max_length", help="Maximum number of tokens per row.")] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Batch size used to measure padding.")] = 8,
    as_json: Json = False,
    **options: object,
) -> CommandResult:
    """Show the splits, labels, lengths and padding of a data set."""
    with starting():
        from glassloop.data.sources import load_examples
        from glassloop.models.interface import length_limit
        from glassloop.models.loading import load_config, load_tokenizer
        from glassloop.training.evaluate import data_content

    examples = load_examples(data, **asdict(data_settings(given_for(DataSettings, options))))
    with stage("loading the tokenizer"):
        tokenizer = load_tokenizer(model)
        limit = length_limit(examples, tokenizer, load_config(model), max_length)
    encoded = show_data(examples, tokenizer, limit, batch_size, TrainingArguments.seed, (data, model))
    return CommandResult(data_content(examples, encoded, data, model, limit))


def show_data(
    examples: Examples, tokenizer: Tokenizer, limit: LengthLimit, batch_size: int, seed: int, names: tuple[str, str]
) -> dict[str, Encoding]:
    """Print the overview and return the encoded splits. `names` are those of the data and of the model."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from glassloop.data.encoding import encode, notes_on

    console = Console()
    encoded = encode(examples, tokenizer, limit.max_length)
    fitted = "train" if "train" in encoded else next(iter(encoded))
    lengths = encoded[fitted].lengths
    columns = examples.columns
    facts = {
        "data": names[0],
        "task": examples.task.replace("_", " "),
        "text": columns.text + (f" + {columns.text_pair}" if columns.text_pair else ""),
        "label": ", ".join(columns.label),
        "model": f"{names[1]}, at most {limit.max_length} tokens",
    }
    headline = Table.grid(padding=(0, 2))
    headline.add_column(style="dim")
    for name, value in facts.items():
        headline.add_row(name, Text(printable(value)))
    parts: list[RenderableType | None] = [
        headline,
        splits_table(examples, encoded),
        features_table(examples, fitted),
        labels_table(examples),
        Text(f"Tokens per row of {printable(fitted)}", style="bold"),
        histogram(lengths),
        padding_table(lengths, batch_size, seed, fitted),
        Text(f"First row of {printable(fitted)}, padded in a batch of {min(batch_size, len(lengths))}", style="bold"),
        example_table(encoded[fitted], tokenizer, batch_size, console.width),
    ]
    if notes := [*examples.notes, *notes_on(encoded, limit)]:
        parts += [Text("Notes", style="bold"), Text("\n".join(f"• {printable(note)}" for note in notes))]
    for part in parts:
        if part is not None:
            console.print(Padding(part, (0, 0, 0 if isinstance(part, Text) and part.style == "bold" else 1, 0)))
    return encoded


def titled_table(title: str, *columns: str, show_header: bool = True) -> Table:
    """Return an empty table under a title, its first column left-aligned and the others right-aligned."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim", pad_edge=False, show_header=show_header)
    table.title, table.title_justify, table.title_style = Text(title), "left", "bold"
    for place, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="right" if place else "left")
    return table


def splits_table(examples: Examples, encoded: dict[str, Encoding]) -> Table:
    """Return a table with rows, lengths, truncation and duplicates of each split."""
    from rich.text import Text

    columns = ("split", "rows", "mean tokens", "longest", "truncated", "duplicates", "also in train")
    table = titled_table("Splits", *columns)
    for name, fact in examples.facts.items():
        lengths = encoded[name].lengths
        truncation = encoded[name].truncation
        cut = f"{truncation.num_rows:,}"
        if truncation.num_rows and examples.columns.text_pair:
            cut += f" ({truncation.num_first:,} first, {truncation.num_second:,} second)"
        if truncation.num_shortened:
            cut += f"; {counted(truncation.num_shortened, 'text', 'texts')} shortened before tokenizing"
        table.add_row(
            Text(printable(name)),
            f"{fact.num_rows:,}",
            f"{lengths.mean():.1f}",
            f"{lengths.max():,}",
            cut,
            f"{fact.num_duplicates:,}",
            "" if name == "train" else f"{fact.num_in_train:,}",
        )
    return table


def features_table(examples: Examples, split: str) -> Table:
    """Return a table with the columns and their types in `datasets`."""
    from rich.text import Text

    table = titled_table("Columns", show_header=False)
    for name, feature in examples.splits[split].features.items():
        kind = type(feature).__name__
        names = getattr(getattr(feature, "feature", feature), "names", None)
        described = str(getattr(feature, "dtype", None) or kind)
        if names:
            described = f"{kind}({', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
        table.add_row(Text(printable(name)), Text(printable(described), style="dim"))
    return table


def labels_table(examples: Examples) -> Table | None:
    """Return a table with the label counts of each split. Of many labels, only the most frequent ones are included."""
    from rich.text import Text

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
        table.add_row(
            Text(f"{number}  {printable(name)}"), *(f"{count:,}  {count / num_rows:>4.0%}" for count, num_rows in counts)
        )
    if hidden:
        table.add_row(f"and {hidden:,} more")
    return table


def histogram(lengths: np.ndarray) -> Table:
    """Return a histogram of row lengths with about ten bars."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    start = int(lengths.min())
    step = max(1, -(-(int(lengths.max()) - start + 1) // HISTOGRAM_BINS))
    counts = np.bincount((lengths - start) // step)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    table.add_column(style="cyan")
    table.add_column(justify="right", style="dim")
    for place, count in enumerate(counts):
        low = start + place * step
        title = f"{low}–{low + step - 1}" if step > 1 else str(low)
        table.add_row(title, Text(bar(count / counts.max())), f"{count:,}")
    return table


def bar(share: float) -> str:
    """Return a bar whose length is a share of the full width."""
    eighths = round(share * BAR_WIDTH * 8)
    return "█" * (eighths // 8) + (BLOCKS[eighths % 8 - 1] if eighths % 8 else "")


def padding_table(lengths: np.ndarray, batch_size: int, seed: int, split: str) -> Table:
    """Return a table with the share of padding in batches, shuffled and grouped by length."""
    from rich.text import Text

    from glassloop.data.batches import epoch_order, padding_waste

    table = titled_table(f"Padding of {printable(split)} in batches of {batch_size}", show_header=False)
    shuffled = epoch_order(len(lengths), batch_size, seed=seed)
    grouped = epoch_order(len(lengths), batch_size, seed=seed, lengths=lengths)
    wastes = {
        "all rows padded to the longest row": 1 - float(lengths.mean()) / float(lengths.max()),
        "each batch padded to its longest row": padding_waste(lengths, shuffled),
        "each batch padded to its longest row, grouped by length": padding_waste(lengths, grouped),
    }
    for name, waste in wastes.items():
        table.add_row(name, Text(f"{waste:6.1%}", style="green" if waste < 0.1 else "yellow"))
    return table


def example_table(encoding: Encoding, tokenizer: Tokenizer, batch_size: int, width: int) -> Table:
    """Return one row as the model gets it: tokens, ids, token types and attention mask, one below the other."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    from glassloop.data.batches import PaddingCollator

    numbers = list(range(min(batch_size, len(encoding.rows))))
    columns = {key: encoding.rows[numbers][key] for key in encoding.rows.column_names if key != "labels"}
    batch = {key: values[0].tolist() for key, values in PaddingCollator(tokenizer)(columns).items()}
    lines = {"token": tokenizer.convert_ids_to_tokens(batch["input_ids"]), "id": batch["input_ids"]}
    lines |= {"type": batch["token_type_ids"]} if "token_type_ids" in batch else {}
    lines["mask"] = batch["attention_mask"]
    cells = list(zip(*([printable(str(cell)) for cell in line] for line in lines.values()), strict=True))
    hidden = len(cells) - int(encoding.lengths[0]) - SHOWN_PADDING
    cells = cells[: len(cells) - hidden] if hidden > 0 else cells
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column()
    for block in blocks_of(cells, width - 6):
        for place, name in enumerate(lines):
            row = Text(f"{name:<6}", style="dim")
            for cell in block:
                blanks = " " * (max(map(cell_len, cell)) - cell_len(cell[place]))
                row.append(f"{blanks}{cell[place]} ", style="bold cyan" if name == "token" else "")
            table.add_row(row)
        table.add_row("")
    if hidden > 0:
        table.add_row(Text(f"… and {hidden} more {printable(str(tokenizer.pad_token))}", style="dim"))
    return table


def blocks_of(cells: list[tuple[str, ...]], width: int) -> list[list[tuple[str, ...]]]:
    """Split columns of cells into blocks of at most `width` characters."""
    from rich.cells import cell_len

    blocks: list[list[tuple[str, ...]]] = [[]]
    used = 0
    for cell in cells:
        needed = max(map(cell_len, cell)) + 1
        if used + needed > width and blocks[-1]:
            blocks.append([])
            used = 0
        blocks[-1].append(cell)
        used += needed
    return blocks
