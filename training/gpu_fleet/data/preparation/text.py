"""`prepare text`: turns a CSV file of texts and labels into a data set for classification."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from gpu_fleet.data.dataset import Description, write_description
from gpu_fleet.data.encoding import Encoding, byte_encoding, file_encoding
from gpu_fleet.data.preparation.prepare import make_folder
from gpu_fleet.data.preparation.progress import progress
from gpu_fleet.data.preparation.skipped import Skipped, corrupt_limit_option
from gpu_fleet.data.text import CLASSES, STARTS, TOKENS
from gpu_fleet.data.tokens import dtype_of
from gpu_fleet.errors import DataError, suggestion

VALIDATION_EVERY = 10  # every tenth row is held out


@dataclass(frozen=True)
class LabelledText:
    """One labelled text."""

    text: str
    label: str


@click.command(epilog="\b\nExample:\n  gpu-fleet train prepare text reviews.csv data/reviews")
@click.argument("source", metavar="FILE.csv", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("out_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--text-column", default="text", show_default=True)
@click.option("--label-column", default="label", show_default=True)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json; default: plain bytes.")
@corrupt_limit_option
def text(
    *,
    source: Path,
    out_dir: Path,
    text_column: str,
    label_column: str,
    tokenizer: Path | None,
    corrupt_limit: int,
) -> None:
    """Write the rows of FILE.csv (with a header) as a data set; every tenth row is held out."""
    rows = list(read_rows(source, text_column, label_column, Skipped(corrupt_limit)))
    # id 0 is padding: bytes move up by one, and a tokenizer.json must use id 0 for it, as BERT's does
    encoding = file_encoding(tokenizer, framed=True) if tokenizer else byte_encoding(shift=1)
    classes = tuple(sorted({row.label for row in rows}))
    held_out = rows[::VALIDATION_EVERY]
    kept = [row for number, row in enumerate(rows) if number % VALIDATION_EVERY]
    if len(classes) < 2 or not kept:  # noqa: PLR2004 - one class leaves nothing to learn
        raise DataError(f"{source}: {len(rows)} good rows of {len(classes)} classes; 2 of each are the least")
    make_folder(out_dir)
    write_split(out_dir / "train", kept, classes, encoding)
    write_split(out_dir / "val", held_out, classes, encoding)
    baseline = naive_bayes_accuracy(kept, held_out)
    description = Description(
        "text", classes, encoding.vocabulary, baseline_name="naive Bayes accuracy", baseline=baseline
    )
    write_description(out_dir, description)
    click.echo(
        f"{len(kept)} texts in {out_dir}/train, {len(held_out)} in {out_dir}/val; {len(classes)} classes; "
        f"vocabulary {encoding.vocabulary}; naive Bayes accuracy {baseline:.4f}"
    )


def read_rows(source: Path, text_column: str, label_column: str, skipped: Skipped) -> Iterator[LabelledText]:
    """Yield the good rows of a CSV file; name and skip rows without text or label, up to the limit."""
    try:
        with source.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            _check_column("--text-column", text_column, source, reader.fieldnames)
            _check_column("--label-column", label_column, source, reader.fieldnames)
            for row in reader:
                sample = LabelledText((row[text_column] or "").strip(), (row[label_column] or "").strip())
                if sample.text and sample.label:
                    yield sample
                else:
                    skipped.add(f"{source} line {reader.line_num}: no text or no label")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{source}: cannot be read as CSV: {error}") from error


def _check_column(flag: str, column: str, source: Path, header: Sequence[str] | None) -> None:
    names = list(header or ())
    if column not in names:
        raise DataError(f"{flag} = {column!r}: {source} has no such column{suggestion(column, names)}")


def write_split(
    folder: Path, rows: Sequence[LabelledText], classes: Sequence[str], encoding: Encoding
) -> None:
    """Write the three files that gpu_fleet.data.text reads."""
    folder.mkdir()
    dtype = dtype_of(encoding.vocabulary)
    starts, targets = [0], []
    with (folder / TOKENS).open("wb") as out, progress(folder.name, len(rows)) as advance:
        for row in rows:
            advance()
            ids = encoding.encode(row.text.encode())
            out.write(ids.astype(dtype).tobytes())
            starts.append(starts[-1] + len(ids))
            targets.append(classes.index(row.label))
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
