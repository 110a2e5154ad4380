"""Predict every row of a file: checked first, in parts that survive a kill, by one process or several."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path

import pyarrow as pa

from glassloop.base.errors import DataError, ResourceError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import replacing, write_text
from glassloop.base.output import PREDICTING, advance, part_of_stage, say, stage
from glassloop.base.records import Json
from glassloop.data.columns import columns_of_text, with_joined
from glassloop.data.encoding import NONE_TYPED, NOTHING_CUT, Truncation, TypedTokens
from glassloop.data.interfaces import Texts
from glassloop.data.readers import FORMATS, SUFFIXES, BadRows, data_suffix, first_row_number, read_file, refuse_special
from glassloop.data.writers import (
    PARQUET,
    TARGETS,
    Row,
    refuse_existing,
    refuse_for_tsv,
    refuse_target,
    row_writer,
    written_table,
)
from glassloop.predict.answers import Answering
from glassloop.settings.training import SCORE, SEVERAL, DataSettings

PART_ROWS = 2_000
FORMAT = 2


@dataclass(frozen=True)
class Counts:
    """What was counted in the texts of some rows."""

    rows: int = 0
    cut: Truncation = NOTHING_CUT
    typed: TypedTokens = NONE_TYPED

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.rows + other.rows, self.cut + other.cut, self.typed + other.typed)


@dataclass
class Layout:
    """The columns of the written file, and their types if it is a Parquet file."""

    columns: list[str] = field(default_factory=list)
    schema: pa.Schema | None = None


@dataclass(frozen=True)
class Parts:
    """The parts of one file, in a hidden folder beside it. The name of the folder says what they were made of.

    Attributes:
        target: The file to write; its suffix chooses the format.
        folder: The folder with the parts.
    """

    target: Path
    folder: Path

    @classmethod
    def of(cls, target: Path, identity: Sequence[Json]) -> Parts:
        """Return the parts of a file whose content depends on `identity`; parts of anything else are not used."""
        key = hashlib.sha256(json.dumps([FORMAT, PART_ROWS, *identity], sort_keys=True).encode()).hexdigest()[:16]
        return cls(target, target.with_name(f".{target.name[:40]}.parts-{key}"))

    @property
    def suffix(self) -> str:
        return self.target.suffix.lower()

    @property
    def begun(self) -> bool:
        """Whether an earlier command with the same inputs has begun to write the file."""
        return self.folder.is_dir()

    def open(self, *, alone: bool) -> None:
        """Create the folder. A command that is `alone` removes the parts of earlier commands with other inputs."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"{self.target.parent}: {error.strerror}", "choose a folder that can be written to") from error
        for other in self.folder.parent.glob(f".{escape(self.target.name[:40])}.parts-*") if alone else ():
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def path(self, number: int) -> Path:
        """Return the path of a part."""
        return self.folder / f"{number:08d}{self.suffix}"

    def counts_path(self, number: int) -> Path:
        """Return the path of what was counted in a part."""
        return self.folder / f"{number:08d}.counts.json"

    def has(self, number: int) -> bool:
        """Return whether a part is finished."""
        return self.path(number).is_file()

    def write(self, number: int, rows: list[Row], layout: Layout, counts: Counts) -> None:
        """Write a part, completely or not at all, and before it what was counted in its texts."""
        write_text(self.counts_path(number), json.dumps(asdict(counts)))
        with replacing(self.path(number)) as temporary:
            if self.suffix == PARQUET:
                import pyarrow.parquet as pq

                pq.write_table(pa.Table.from_pylist(rows, schema=layout.schema), temporary)
                return
            with temporary.open("w", encoding="utf-8", newline="") as opened:
                write = row_writer(opened, self.suffix, layout.columns, header=False)
                for row in rows:
                    write(row)

    def counts(self, number: int) -> Counts:
        """Return what was counted in the texts of a part."""
        found = json.loads(self.counts_path(number).read_text(encoding="utf-8"))
        typed = TypedTokens(found["typed"]["num_rows"], tuple(found["typed"]["tokens"]))
        return Counts(found["rows"], Truncation(**found["cut"]), typed)

    def join(self, num_parts: int, layout: Layout) -> None:
        """Write the file from all its parts, and remove them."""
        with replacing(self.target) as temporary:
            if self.suffix == PARQUET:
                import pyarrow.parquet as pq

                with pq.ParquetWriter(temporary, layout.schema) as writer:
                    for number in range(num_parts):
                        writer.write_table(pq.read_table(self.path(number)))
            else:
                with temporary.open("w", encoding="utf-8", newline="") as opened:
                    row_writer(opened, self.suffix, layout.columns)
                with temporary.open("ab") as joined:
                    for number in range(num_parts):
                        with self.path(number).open("rb") as part:
                            shutil.copyfileobj(part, joined)
        shutil.rmtree(self.folder, ignore_errors=True)


def has_parts(target: Path) -> bool:
    """Return whether a command was interrupted that wrote to `target`, with these inputs or others."""
    return next(target.parent.glob(f".{escape(target.name[:40])}.parts-*"), None) is not None


def content_key(path: Path) -> str:
    """Return a checksum of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@dataclass(frozen=True)
class FileRows:
    """Some rows of a file: their columns as they are written, and the texts to predict."""

    first: int  # the number of the first row in the file
    table: pa.Table  # the columns of the file
    texts: Texts  # the texts, or the first and the second texts of pairs


def checked_rows(
    source: Path, settings: DataSettings, texts: Sequence[str], added: Sequence[str], bad: BadRows
) -> Iterator[FileRows]:
    """Yield the rows of a file.

    `texts` are the columns of the texts, each of which may name several; `added` those that predictions will add. Raise
    `DataError` for the first row that cannot be predicted.
    """
    if source.exists():
        refuse_special(source)
    if not source.is_file() or data_suffix(source) not in SUFFIXES:
        raise DataError(f"{source}: there is no such data file", FORMATS)
    number = first_row_number(source, settings)
    for table in read_file(source, settings, bad):
        refuse_columns(source, table.column_names, texts, added)
        table = written_table(table, source.name)
        joined = with_joined(table, texts, source.name)
        columns = [joined[name].to_pylist() for name in texts]
        for name, cells in zip(texts, columns, strict=True):
            for place, cell in enumerate(cells):
                if isinstance(cell, str) and cell:
                    continue
                where = f"{source.name}, row {bad.number_of(source, number + place):,}"
                if cell is None or cell == "":
                    raise DataError(f"{where}: the text is empty", "fill or remove the row")
                raise DataError(f"{where}: {visible(name)} is {visible(cell)}, not text", "name the text column with --text")
        yield FileRows(number, table, columns)
        number += table.num_rows


def refuse_columns(source: Path, found: Sequence[str], texts: Sequence[str], added: Sequence[str]) -> None:
    """Raise if a file does not have the columns of the texts, or has one that predictions would overwrite."""
    if not texts:
        raise SettingsError(f"{source.name}: the text column is not known; found {listed(found)}", "name it with --text")
    for name in (part for text in texts for part in columns_of_text(text, found)):
        if name not in found:
            there = f"found {listed(found)}{did_you_mean(name, found)}"
            raise DataError(
                f"{source.name}: there is no column {visible(name)}; {there}", "name the columns with --text and --text_pair"
            )
    for name in added:
        if name in found:
            raise DataError(
                f"{source.name}: there is already a column {visible(name)}",
                "rename it: predictions are written to a column of that name",
            )


SHARE = "GLASSLOOP_SHARE"  # which parts a process of several predicts: "0/2" is the first of two
PredictTexts = Callable[[Texts], tuple[list[Row], Counts]]  # the columns to add to each row, and what was counted


@dataclass(frozen=True)
class FileJob:
    """A file to predict.

    Attributes:
        source: The file to read.
        target: The file to write.
        texts: The columns with the texts.
        settings: How to read the file.
        task: The task of the model.
        names: The names of its labels.
        identity: What else the predictions depend on: the model, and how logits become answers.
        overwrite: Whether to replace a file that is already there.
    """

    source: Path
    target: Path
    texts: tuple[str, ...]
    settings: DataSettings
    task: str
    names: tuple[str, ...]
    identity: tuple[Json, ...]
    overwrite: bool = True

    @property
    def added(self) -> list[str]:
        """The columns with predictions."""
        return ["prediction", *(f"score_{name}" for name in self.names if self.task != SCORE)]

    @property
    def added_schema(self) -> pa.Schema:
        """The types of the columns with predictions in a Parquet file."""
        label = pa.float64() if self.task == SCORE else pa.list_(pa.string()) if self.task == SEVERAL else pa.string()
        return pa.schema([(name, label if name == "prediction" else pa.float64()) for name in self.added])

    def rows(self, skipped: BadRows) -> Iterator[FileRows]:
        """Yield the checked rows of the file."""
        return checked_rows(self.source, self.settings, self.texts, self.added, skipped)


def predict_rows(job: FileJob, predict: PredictTexts) -> tuple[Counts, BadRows]:
    """Predict all rows of a file and write them in their order. A process of several predicts its share and joins nothing.

    Return what was counted in the rows, and the rows that cannot be read.
    The whole file is checked before the first row is predicted. Parts that an earlier command finished are used again.
    """
    # A part is written completely or not at all, so a kill loses at most one part. The folder is named by a checksum of
    # all inputs: other inputs never mix.
    refuse_target(job.target, (*TARGETS, PARQUET))
    layout, num_rows, _ = survey(job)
    rank, num_processes = own_share()
    parts = Parts.of(job.target, [content_key(job.source), str(job.settings), *job.texts, *job.added, *job.identity])
    if not job.overwrite and not parts.begun:  # else a command was killed after it had written the file
        refuse_existing(job.target)
    parts.open(alone=num_processes == 1)
    skipped, number, done, found = new_list(job), 0, 0, Counts()
    with stage(PREDICTING, num_rows):
        for piece in pieces(job.rows(skipped)):
            size = piece.table.num_rows
            if parts.has(number):
                done += size
                advance(size)
            elif number % num_processes == rank:
                if done and number and parts.has(number - 1) and num_processes == 1:
                    say(f"resuming after {counted(done, 'row', 'rows')} of an earlier command")
                    done = 0
                with part_of_stage(size):
                    answers, counts = predict(piece.texts)
                    rows = [{**row, **answer} for row, answer in zip(piece.table.to_pylist(), answers, strict=True)]
                    parts.write(number, rows, layout, counts)
            else:
                advance(size)  # of another process
            number += 1
    if num_processes == 1:
        for part in range(number):
            found += parts.counts(part)
        parts.join(number, layout)
    return found, skipped


def new_list(job: FileJob) -> BadRows:
    """Return an empty list of rows that cannot be read."""
    return BadRows(skip=job.settings.bad_rows == "skip", offer=True)


def survey(job: FileJob) -> tuple[Layout, int, BadRows]:
    """Check the whole file. Return the columns to write, the number of rows, and the rows that cannot be read."""
    # Twice, so that an unusable last row is found before hours of work.
    layout, num_rows, skipped, suffix = Layout(), 0, new_list(job), job.target.suffix.lower()
    with stage(f"reading {job.source.name}"):
        for rows in job.rows(skipped):
            table, num_rows = rows.table, num_rows + rows.table.num_rows
            layout.columns = [*table.column_names, *job.added]
            if suffix == PARQUET:
                layout.schema = joined_schema(job, layout.schema, table.schema)
            elif suffix == ".tsv":
                refuse_for_tsv(table, rows.first, job.source.name, job.added)
            advance(table.num_rows)
    if not layout.columns:
        raise DataError(f"{job.source.name}: the file has no rows", "use a file with at least one row")
    return layout, num_rows, skipped


def joined_schema(job: FileJob, known: pa.Schema | None, found: pa.Schema) -> pa.Schema:
    """Return one schema for all rows of a file, with the columns of the predictions. Raise `DataError` if types differ."""
    found = pa.schema([*found, *job.added_schema])
    try:
        return found if known is None else pa.unify_schemas([known, found], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{job.source.name}: a column changes its type: {error}", "write a .jsonl file instead: --out"
        ) from error


def pieces(checked: Iterator[FileRows]) -> Iterator[FileRows]:
    """Yield the rows of a file in slices of at most `PART_ROWS`."""
    for rows in checked:
        for start in range(0, rows.table.num_rows, PART_ROWS):
            texts = [column[start : start + PART_ROWS] for column in rows.texts]
            yield FileRows(rows.first + start, rows.table.slice(start, PART_ROWS), texts)


def own_share() -> tuple[int, int]:
    """Return which share of the parts this process predicts, and the number of processes."""
    rank, _, number = os.environ.get(SHARE, "0/1").partition("/")
    return int(rank), int(number)


def share_environments(num_processes: int, num_gpus: int) -> list[dict[str, str]]:
    """Return the environment of each of several processes: its share, and its GPU or its part of the CPU cores."""
    threads = str(max(1, (os.cpu_count() or 1) // num_processes))
    found: list[dict[str, str]] = []
    for rank in range(num_processes):
        place = {"CUDA_VISIBLE_DEVICES": str(rank % num_gpus)} if num_gpus else {"OMP_NUM_THREADS": threads}
        found.append({**os.environ, **place, SHARE: f"{rank}/{num_processes}"})
    return found


def model_key(folders: Sequence[Path], device: str, answering: Answering, *, int8: bool = False) -> tuple[Json, ...]:
    """Return what predictions depend on: every file of the models, device and precision, and how labels are chosen."""
    files: list[Json] = [
        f"{path.name} {content_key(path)}" for folder in folders for path in sorted(folder.iterdir()) if path.is_file()
    ]
    return (files, device, int8, answering.temperature, {**answering.thresholds})
