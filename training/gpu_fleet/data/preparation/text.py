"""`prepare text`: turns a CSV file of texts and labels into a data set for classification."""

import codecs
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from gpu_fleet.core.errors import DataError, suggestion
from gpu_fleet.data.census import check_apart, shown
from gpu_fleet.data.dataset import Description, write_description
from gpu_fleet.data.preparation.prepare import Skipped, corrupt_limit_option, make_folder, progress
from gpu_fleet.data.preparation.tokens import Encoding, byte_encoding, file_encoding
from gpu_fleet.data.text import CLASSES, STARTS, TOKENS
from gpu_fleet.data.tokens import dtype_of

VALIDATION_EVERY = 10  # a tenth of the rows of each class is held out
SPLIT_SEED = 0  # the same rows always make the same split
LONGEST_FIELD = 2**31 - 1  # characters; the csv module's own limit is 131,072
DELIMITERS = (",", ";", "\t", "|")
MARKS = (  # the first bytes of a file -> its encoding; the longer mark of UTF-32 begins as that of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class LabelledText:
    text: str
    label: str


@click.command(epilog="\b\nExample:\n  gpu-fleet train prepare text reviews.csv data/reviews")
@click.argument("source", metavar="FILE.csv", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("out_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--text-column", default="text", show_default=True)
@click.option("--label-column", default="label", show_default=True)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json; default: plain bytes.")
@click.option("--delimiter", default="", help="Character between fields; default: , ; tab or |.")
@click.option(
    "--quoting",
    type=click.Choice(["minimal", "none"]),
    default="minimal",
    show_default=True,
    help="Quotation marks around fields; none: they are part of the text, as in the TSV files of GLUE.",
)
@click.option("--encoding", default="", help="Such as cp1252; default: by its byte order mark, else UTF-8.")
@corrupt_limit_option
def text(
    *,
    source: Path,
    out_dir: Path,
    text_column: str,
    label_column: str,
    tokenizer: Path | None,
    delimiter: str,
    quoting: str,
    encoding: str,
    corrupt_limit: int,
) -> None:
    """Write the rows of FILE.csv (with a header) as a data set; a tenth of each class is held out."""
    if text_column == label_column:
        raise DataError(
            f"--label-column = {label_column!r}: is the column of the texts too; name another one"
        )
    skipped = Skipped(corrupt_limit)
    rows = list(read_rows(source, (text_column, label_column), skipped, delimiter, encoding, quoting=quoting))
    # id 0 is padding: bytes move up by one, and a tokenizer.json must use id 0 for it, as BERT's does
    ids = file_encoding(tokenizer, framed=True) if tokenizer else byte_encoding(shift=1)
    classes = tuple(sorted({row.label for row in rows}))
    check_apart(classes, f"{source}: the labels")
    kept, held_out = split(rows)
    if len(classes) < 2 or not kept:  # noqa: PLR2004 - one class leaves nothing to learn
        raise DataError(f"{source}: {len(rows)} good rows of {len(classes)} classes; 2 of each are needed")
    check_classes(source, classes, kept, held_out, skipped)
    make_folder(out_dir)
    baseline = naive_bayes_accuracy(kept, held_out)  # first: it needs a package that may not be installed
    write_split(out_dir / "train", kept, classes, ids)
    write_split(out_dir / "val", held_out, classes, ids)
    description = Description(
        "text", classes, ids.vocabulary, baseline_name="naive Bayes accuracy", baseline=baseline
    )
    write_description(out_dir, description)
    click.echo(
        f"{len(kept)} texts in {out_dir}/train, {len(held_out)} in {out_dir}/val; {len(classes)} classes; "
        f"vocabulary {ids.vocabulary}; naive Bayes accuracy {baseline:.4f}"
    )
    skipped.say("row")


def split(rows: Sequence[LabelledText]) -> tuple[list[LabelledText], list[LabelledText]]:
    """Return the rows to train on, and a drawn tenth of each class, held out, in the order of the file."""
    drawn = np.random.default_rng(SPLIT_SEED).permutation(len(rows)).tolist()
    held_out = set(sorted(drawn, key=lambda place: rows[place].label)[::VALIDATION_EVERY])
    kept = [row for place, row in enumerate(rows) if place not in held_out]
    return kept, [rows[place] for place in sorted(held_out)]


def check_classes(
    source: Path,
    classes: Sequence[str],
    kept: Sequence[LabelledText],
    held_out: Sequence[LabelledText],
    skipped: Skipped,
) -> None:
    """Count classes without a held-out row; raises DataError if some have none to train on."""
    trained_on = {row.label for row in kept}
    if lacking := [name for name in classes if name not in trained_on]:
        raise DataError(
            f"{source}: {len(lacking)} of {len(classes)} classes have no row to train on, such as "
            f"{shown(lacking[0])!r}; a class needs 2 rows, and --label-column names classes, not numbers"
        )
    for name in trained_on - {row.label for row in held_out}:
        skipped.census.leave("classes without a held-out row", name)


def read_rows(
    source: Path, columns: tuple[str, str], skipped: Skipped, delimiter: str, encoding: str, *, quoting: str
) -> Iterator[LabelledText]:
    """Yield the good rows of a CSV file; skip those without text or label. Raises DataError for others."""
    csv.field_size_limit(LONGEST_FIELD)
    encoding = encoding or _encoding_of(source)
    line = 1
    try:
        with source.open(encoding=encoding, newline="") as file:
            delimiter = delimiter or _delimiter_of(file.readline(), columns)
            file.seek(0)
            reader = csv.reader(
                file,
                delimiter=delimiter,
                strict=True,
                quoting=csv.QUOTE_NONE if quoting == "none" else csv.QUOTE_MINIMAL,
            )
            header = next(reader, [])
            places = [
                _place_of(column, header, flag, f"{source}, with {delimiter!r} between fields,")
                for flag, column in zip(("--text-column", "--label-column"), columns, strict=True)
            ]
            for row in reader:
                line, before = reader.line_num, line
                if delimiter == "\t" and any("\t" in field and {*"\r\n"} & {*field} for field in row):
                    raise DataError(
                        f"{source} lines {before + 1} to {line}: one field holds tabs and line breaks, as if "
                        "its quotation mark were part of the text: set --quoting none, or write a CSV"
                    )
                text, label = (row[place].strip() if place < len(row) else "" for place in places)
                if row and len(row) != len(header):
                    skipped.add(f"{source} line {line}: {len(row)} fields, and {len(header)} in the header")
                elif text and label:
                    yield LabelledText(text, label)
                elif row:
                    skipped.add(f"{source} line {line}: no text or no label")
                else:
                    skipped.census.leave("empty lines", f"line {before + 1}")
    except UnicodeError as error:  # a UTF-16 without its mark is no UnicodeDecodeError
        reason = str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = f"byte {error.object[error.start]:#04x}"
        raise DataError(
            f"{source}: is no {encoding}: {reason}; name the encoding, such as --encoding cp1252 (Windows)"
        ) from error
    except LookupError as error:
        raise DataError(f"--encoding = {encoding!r}: Python knows no such encoding") from error
    except (OSError, TypeError, csv.Error) as error:
        hint = "; --quoting none reads quotation marks as text" if isinstance(error, csv.Error) else ""
        raise DataError(f"{source}: cannot be read as CSV after line {line}: {error}{hint}") from error


def _encoding_of(source: Path) -> str:
    """Return the encoding that a file's byte order mark names; UTF-8 without one."""
    try:
        with source.open("rb") as file:
            begin = file.read(4)
    except OSError as error:
        raise DataError(f"{source}: cannot be read as CSV: {error.strerror}") from error
    return next((name for mark, name in MARKS if begin.startswith(mark)), "utf-8")


def _delimiter_of(header: str, columns: Sequence[str]) -> str:
    """Return the delimiter that splits a header into fields with these columns; a comma if none does."""
    fitting = [
        sign for sign in DELIMITERS if set(columns) <= set(next(csv.reader([header], delimiter=sign), []))
    ]
    return next(iter(fitting), DELIMITERS[0])


def _place_of(column: str, header: Sequence[str], flag: str, where: str) -> int:
    """Return the number of a column; raises DataError if it is missing, or there twice."""
    if header.count(column) == 1:
        return header.index(column)
    if column in header:
        raise DataError(f"{flag} = {column!r}: {where} has {header.count(column)} such columns; rename one")
    raise DataError(
        f"{flag} = {column!r}: {where} has no such column{suggestion(column, map(shown, header))}"
    )


def write_split(
    folder: Path, rows: Sequence[LabelledText], classes: Sequence[str], encoding: Encoding
) -> None:
    """Write the three files that gpu_fleet.data.text reads."""
    folder.mkdir()
    dtype = dtype_of(encoding.vocabulary)
    starts, targets = [0], []
    numbers = {name: number for number, name in enumerate(classes)}
    with (folder / TOKENS).open("wb") as out, progress(folder.name, len(rows)) as advance:
        for row in rows:
            advance()
            ids = encoding.encode(row.text.encode())
            out.write(ids.astype(dtype).tobytes())
            starts.append(starts[-1] + len(ids))
            targets.append(numbers[row.label])
    np.save(folder / STARTS, np.asarray(starts, dtype=np.int64))
    np.save(folder / CLASSES, np.asarray(targets, dtype=np.int64))


def naive_bayes_accuracy(train: Sequence[LabelledText], held_out: Sequence[LabelledText]) -> float:
    """Return the fraction of held-out rows that multinomial naive Bayes on word counts gets right."""
    from sklearn.feature_extraction.text import (  # type: ignore[import-untyped]  # noqa: PLC0415 - untyped, and slow to load
        CountVectorizer,
    )
    from sklearn.naive_bayes import MultinomialNB  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    words = CountVectorizer(token_pattern=r"(?u)\w+|[^\w\s]")  # noqa: S106 - a pattern for words, no secret
    model = MultinomialNB().fit(words.fit_transform(row.text for row in train), [row.label for row in train])
    guesses = model.predict(words.transform(row.text for row in held_out))
    return float(np.mean(guesses == np.asarray([row.label for row in held_out])))
