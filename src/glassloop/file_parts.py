"""The finished parts of a file of predictions: what a killed command leaves behind, and what several processes share."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path

import pyarrow as pa

from glassloop.data.special_tokens import NONE_TYPED, TypedTokens
from glassloop.data.truncation import NOTHING_CUT, Truncation
from glassloop.data.writers import PARQUET, Row, row_writer
from glassloop.errors import ResourceError
from glassloop.files import replacing, write_text
from glassloop.records import Json

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
