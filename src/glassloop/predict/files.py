"""Predict every row of a file: checked first, in parts that survive a kill, by one process or several."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path

import pyarrow as pa

from glassloop.base.errors import DataError, ResourceError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import replacing, write_text
from glassloop.base.output import PREDICTING, advance, part_of_stage, say, stage
from glassloop.base.records import Json, decoded, read_json
from glassloop.data import writers
from glassloop.data.columns import columns_of_text, with_joined
from glassloop.data.encoding import Counts
from glassloop.data.interfaces import Texts
from glassloop.data.readers import FORMATS, SUFFIXES, BadRows, data_suffix, first_row_number, read_file, refuse_special
from glassloop.data.writers import PARQUET, TARGETS, Row
from glassloop.predict.answers import Answering
from glassloop.settings.training import SCORE, SEVERAL, DataSettings

PART_ROWS = 2_000
FORMAT = 2
SHARE = "GLASSLOOP_SHARE"  # which parts a process of several predicts: "0/2" is the first of two
PredictTexts = Callable[[Texts], tuple[list[Row], Counts]]  # the columns to add to each row, and what was counted


@dataclass(frozen=True)
class FileJob:
    """A file to predict."""

    source: Path  # the file to read
    target: Path  # the file to write; its suffix chooses the format
    texts: tuple[str, ...]  # the columns with the texts, each of which may name several
    settings: DataSettings  # how to read the file
    task: str  # the task of the model
    names: tuple[str, ...]  # the names of its labels
    identity: tuple[Json, ...]  # what else the predictions depend on: the model, and how logits become answers
    overwrite: bool = True  # whether to replace a file that is already there

    @property
    def added(self) -> list[str]:
        return ["prediction", *(f"score_{name}" for name in self.names if self.task != SCORE)]


def predict_rows(job: FileJob, predict: PredictTexts) -> tuple[Counts, BadRows]:
    """Predict all rows of a file and write them in their order. Return what was counted in them, and the unreadable rows."""
    writers.refuse_target(job.target, (*TARGETS, PARQUET))
    columns, schema, num_rows = survey(job)
    rank, num_processes = map(int, os.environ.get(SHARE, "0/1").split("/"))
    identity = [content_key(job.source), str(job.settings), *job.texts, *job.added, *job.identity]
    parts = Parts(job.target, identity, columns, schema)
    if not job.overwrite and not parts.folder.is_dir():  # else a command was killed after it had written the file
        writers.refuse_existing(job.target)
    parts.open(alone=num_processes == 1)
    bad, number, done = BadRows(skip=job.settings.bad_rows == "skip", offer=True), 0, 0
    with stage(PREDICTING, num_rows):
        for _, table, texts in checked_rows(job, bad):
            for start in range(0, table.num_rows, PART_ROWS):
                piece = table.slice(start, PART_ROWS)
                size = piece.num_rows
                if parts.has(number):
                    done += size
                    advance(size)
                elif number % num_processes == rank:
                    if done and number and parts.has(number - 1) and num_processes == 1:
                        say(f"resuming after {counted(done, 'row', 'rows')} of an earlier command")
                        done = 0
                    with part_of_stage(size):
                        answers, counts = predict([column[start : start + PART_ROWS] for column in texts])
                        cells = zip(piece.to_pylist(), answers, strict=True)
                        parts.write(number, [{**row, **answer} for row, answer in cells], counts)
                else:
                    advance(size)  # of another process
                number += 1
    if num_processes > 1:
        return Counts(), bad  # the process that started this one joins the parts
    found = sum(map(parts.counts, range(number)), Counts())
    parts.join(number)
    return found, bad


def survey(job: FileJob) -> tuple[list[str], pa.Schema | None, int]:
    """Check the whole file; return the columns to write, their types if that is a Parquet file, and the number of rows."""
    # An unusable last row must be found before hours of work.
    columns: list[str] = []
    schema, num_rows, suffix, name = None, 0, job.target.suffix.lower(), job.source.name
    label = pa.float64() if job.task == SCORE else pa.list_(pa.string()) if job.task == SEVERAL else pa.string()
    added = pa.schema([(column, label if column == "prediction" else pa.float64()) for column in job.added])
    with stage(f"reading {name}"):
        for first, table, _ in checked_rows(job, BadRows(skip=job.settings.bad_rows == "skip", offer=True)):
            columns = [*table.column_names, *job.added]
            if suffix == PARQUET:
                found = pa.schema([*table.schema, *added])
                try:
                    schema = pa.unify_schemas([schema or found, found], promote_options="permissive")
                except pa.ArrowException as error:
                    problem = f"{name}: a column changes its type: {error}"
                    raise DataError(problem, "write a .jsonl file instead: --out") from error
            elif suffix == ".tsv":
                writers.refuse_for_tsv(table, first, name, job.added)
            num_rows += table.num_rows
            advance(table.num_rows)
    if not columns:
        raise DataError(f"{name}: the file has no rows", "use a file with at least one row")
    return columns, schema, num_rows


def checked_rows(job: FileJob, bad: BadRows) -> Iterator[tuple[int, pa.Table, Texts]]:
    """Yield rows of a file: the number of the first one there, the columns as they are written, and the texts to predict."""
    source, name = job.source, job.source.name
    if source.exists():
        refuse_special(source)
    if not source.is_file() or data_suffix(source) not in SUFFIXES:
        raise DataError(f"{source}: there is no such data file", FORMATS)
    number = first_row_number(source, job.settings)
    for table in read_file(source, job.settings, bad):
        there = table.column_names
        if not job.texts:
            raise SettingsError(f"{name}: the text column is not known; found {listed(there)}", "name it with --text")
        if absent := [column for text in job.texts for column in columns_of_text(text, there) if column not in there]:
            problem = f"there is no column {visible(absent[0])}; found {listed(there)}{did_you_mean(absent[0], there)}"
            raise DataError(f"{name}: {problem}", "name the columns with --text and --text_pair")
        if taken := [column for column in job.added if column in there]:
            problem = f"{name}: there is already a column {visible(taken[0])}"
            raise DataError(problem, "rename it: predictions are written to a column of that name")
        table = writers.written_table(table, name)
        joined = with_joined(table, job.texts, name)
        columns = [joined[text].to_pylist() for text in job.texts]
        for text, cells in zip(job.texts, columns, strict=True):
            for place, cell in enumerate(cells):
                if isinstance(cell, str) and cell:
                    continue
                where = f"{name}, row {bad.number_of(source, number + place):,}"
                if cell is None or cell == "":
                    raise DataError(f"{where}: the text is empty", "fill or remove the row")
                raise DataError(f"{where}: {visible(text)} is {visible(cell)}, not text", "name the text column with --text")
        yield number, table, columns
        number += table.num_rows


class Parts:
    """The parts of one file, in a hidden folder beside it, named by a checksum of all inputs (`identity`)."""

    # A part is written completely or not at all, so a kill loses at most one part. Parts of other inputs never mix.

    def __init__(self, target: Path, identity: Sequence[Json], columns: list[str], schema: pa.Schema | None = None) -> None:
        self.target, self.columns, self.schema = target, columns, schema
        self.suffix = target.suffix.lower()
        key = hashlib.sha256(json.dumps([FORMAT, PART_ROWS, *identity], sort_keys=True).encode()).hexdigest()[:16]
        self.folder = target.with_name(f".{target.name[:40]}.parts-{key}")

    def open(self, *, alone: bool) -> None:
        """Create the folder. A command that is `alone` removes the parts of earlier commands with other inputs."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResourceError(f"{self.target.parent}: {error.strerror}", "choose a folder that can be written to") from error
        for other in part_folders(self.target) if alone else ():
            if other != self.folder:
                shutil.rmtree(other, ignore_errors=True)

    def path(self, number: int, suffix: str | None = None) -> Path:
        return self.folder / f"{number:08d}{suffix or self.suffix}"

    def has(self, number: int) -> bool:
        return self.path(number).is_file()

    def write(self, number: int, rows: list[Row], counts: Counts) -> None:
        """Write a part, and before it what was counted in its texts."""
        write_text(self.path(number, ".counts.json"), json.dumps(asdict(counts)))
        with replacing(self.path(number)) as temporary:
            if self.suffix == PARQUET:
                import pyarrow.parquet as pq

                pq.write_table(pa.Table.from_pylist(rows, schema=self.schema), temporary)
                return
            with temporary.open("w", encoding="utf-8", newline="") as opened:
                write = writers.row_writer(opened, self.suffix, self.columns, header=False)
                for row in rows:
                    write(row)

    def counts(self, number: int) -> Counts:
        return decoded(Counts, read_json(self.path(number, ".counts.json")))

    def join(self, num_parts: int) -> None:
        with replacing(self.target) as temporary:
            if self.suffix == PARQUET:
                import pyarrow.parquet as pq

                with pq.ParquetWriter(temporary, self.schema) as writer:
                    for number in range(num_parts):
                        writer.write_table(pq.read_table(self.path(number)))
            else:
                with temporary.open("w", encoding="utf-8", newline="") as opened:
                    writers.row_writer(opened, self.suffix, self.columns)
                with temporary.open("ab") as joined:
                    for number in range(num_parts):
                        with self.path(number).open("rb") as part:
                            shutil.copyfileobj(part, joined)
        shutil.rmtree(self.folder, ignore_errors=True)


def part_folders(target: Path) -> list[Path]:
    """Return the folders of interrupted commands that wrote to `target`, with these inputs or others."""
    return [*target.parent.glob(f".{escape(target.name[:40])}.parts-*")]


def content_key(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def share_environments(num_processes: int, num_gpus: int) -> list[dict[str, str]]:
    """Return the environment of each of several processes: its share, and its GPU or its part of the CPU cores."""
    threads, ranks = str(max(1, (os.cpu_count() or 1) // num_processes)), range(num_processes)
    places = [{"CUDA_VISIBLE_DEVICES": str(rank % num_gpus)} if num_gpus else {"OMP_NUM_THREADS": threads} for rank in ranks]
    return [{**os.environ, **place, SHARE: f"{rank}/{num_processes}"} for rank, place in enumerate(places)]


def model_key(folders: Sequence[Path], device: str, answering: Answering, *, int8: bool = False) -> tuple[Json, ...]:
    """Return what predictions depend on: every file of the models, device and precision, and how labels are chosen."""
    paths = (path for folder in folders for path in sorted(folder.iterdir()) if path.is_file())
    files: list[Json] = [f"{path.name} {content_key(path)}" for path in paths]
    return (files, device, int8, answering.temperature, {**answering.thresholds})
