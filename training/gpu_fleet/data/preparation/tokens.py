"""`prepare tokens`: turns a folder of text files into token files for a language model."""

import sysconfig
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from gpu_fleet.core.errors import DataError, counted
from gpu_fleet.data.census import Census, check_unlinked, entries, walked
from gpu_fleet.data.class_folders import NAME_OF_SPLIT
from gpu_fleet.data.dataset import Array, Description, write_description
from gpu_fleet.data.preparation.prepare import Skipped, corrupt_limit_option, make_folder, progress
from gpu_fleet.data.tokens import FILE, dtype_of

STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
NOT_TEXT = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test"}
VALIDATION_EVERY = 10  # every tenth file is held out
GZIP_LEVEL = 9
BYTES = 256


@dataclass(frozen=True)
class Encoding:
    """Conversion of text to ids, all below `vocabulary`."""

    encode: Callable[[bytes], Array]  # text to ids (n,) int64; may raise UnicodeDecodeError
    vocabulary: int
    end: int | None = None  # the id that ends a file, if the vocabulary has one

    @property
    def with_end(self) -> int:
        """Number of ids, including the one that ends a file."""
        return self.vocabulary + (self.end is None)


def byte_encoding(shift: int) -> Encoding:
    """Return the encoding of each byte as one token, with the first `shift` ids free; fits any text."""

    def encode(text: bytes) -> Array:
        return np.frombuffer(text, dtype=np.uint8).astype(np.int64) + shift

    return Encoding(encode, BYTES + shift)


def file_encoding(file: Path, end: str = "", *, framed: bool = False) -> Encoding:
    """Load a tokenizer.json; `framed` adds its tokens around each text, such as [CLS]. Raises DataError."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - only where one is given

    if not file.is_file():
        raise DataError(f"--tokenizer = {str(file)!r}: is not a file; the tokenizer.json of a model is one")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower class for a broken file
        raise DataError(f"--tokenizer = {str(file)!r}: cannot be read: {error}") from error
    tokenizer.no_truncation()  # the file may cut and fill each text, as those of sentence-transformers do
    tokenizer.no_padding()

    def encode(text: bytes) -> Array:
        decoded = text.decode("utf-8-sig")  # without a byte order mark
        ids = np.asarray(tokenizer.encode(decoded, add_special_tokens=framed).ids, dtype=np.int64)
        if framed and not ids.all():
            raise DataError(
                f"--tokenizer = {str(file)!r}: makes id 0, {tokenizer.id_to_token(0)!r}, of part of a text, "
                "and 0 is padding; use a tokenizer whose id 0 only pads, as BERT's"
            )
        return ids

    if end and tokenizer.token_to_id(end) is None:
        raise DataError(f"--end-token = {end!r}: {file} has no such token")
    # not their number: a file may leave ids out
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Encoding(encode, size, tokenizer.token_to_id(end) if end else None)


@dataclass
class Totals:
    files: int = 0
    text_bytes: int = 0
    tokens: int = 0
    gzip_bytes: int = 0


@click.command(epilog="\b\nExample:\n  gpu-fleet train prepare tokens data/standard_library")
@click.argument("out_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    default=STANDARD_LIBRARY,
    help="Folder of text files; default: the interpreter's own standard library, without its tests.",
)
@click.option("--pattern", default="*.py", show_default=True, help="Files below it, as a pattern.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="A tokenizer.json; default: plain bytes.")
@click.option("--end-token", default="", help="Token of --tokenizer that ends a file; default: a new one.")
@corrupt_limit_option
def tokens(
    *, out_dir: Path, source: Path, pattern: str, tokenizer: Path | None, end_token: str, corrupt_limit: int
) -> None:
    """Write the text files below --source as tokens.bin; every tenth file is held out for validation."""
    skipped = Skipped(corrupt_limit)
    files = text_files(source, pattern, skipped.census)
    if end_token and not tokenizer:
        raise DataError(f"--end-token = {end_token!r}: is a token of a --tokenizer, and none is given")
    encoding = file_encoding(tokenizer, end_token) if tokenizer else byte_encoding(shift=0)
    held_out = files[::VALIDATION_EVERY]
    kept = [file for number, file in enumerate(files) if number % VALIDATION_EVERY]
    check_unlinked(kept, held_out)
    make_folder(out_dir)
    train = write_split(out_dir / "train", kept, encoding, skipped)
    val = write_split(out_dir / "val", held_out, encoding, skipped)
    description = Description(
        "tokens",
        vocabulary=encoding.with_end,
        bytes_per_token=val.text_bytes / val.tokens,
        baseline_name="gzip -9 bits per byte",
        baseline=8 * val.gzip_bytes / val.text_bytes,
    )
    write_description(out_dir, description)
    click.echo(
        f"{train.tokens} tokens of {train.files} files in {out_dir}/train, {val.tokens} of {val.files} in "
        f"{out_dir}/val; vocabulary {description.vocabulary}; "
        f"gzip -9 needs {description.baseline:.4f} bits per byte"
    )
    skipped.say("file")


def text_files(source: Path, pattern: str, census: Census) -> list[Path]:
    """Return the text files, sorted; raises DataError if there are too few, or of splits that would mix."""
    if not source.is_dir():
        raise DataError(f"--source = {str(source)!r}: is not a folder")
    inner = sorted(entry.name for entry in entries(source, Census()) if entry.is_dir())
    splits = [name for name in inner if NAME_OF_SPLIT.match(name)]
    if "train" in splits and len(splits) > 1:
        raise DataError(
            f"--source = {str(source)!r}: would mix {' and '.join(splits)}; set it to {source / 'train'}, of "
            "which a tenth is held out"
        )
    left_out = NOT_TEXT if source == STANDARD_LIBRARY else set()
    files = []
    for file in walked(source, census):
        within = file.relative_to(source)
        if left_out & set(within.parts):
            census.leave("tests and packages of the standard library", file)
        elif within.match(pattern):
            files.append(file)
        else:
            census.leave(f"files that do not match {pattern}", file)
    if len(files) < VALIDATION_EVERY:
        raise DataError(
            f"--source = {str(source)!r}: {counted(len(files), 'file')} of --pattern {pattern!r}; "
            f"at least {VALIDATION_EVERY} are needed; left out: {census}"
        )
    return sorted(files)


def write_split(folder: Path, files: Sequence[Path], encoding: Encoding, skipped: Skipped) -> Totals:
    """Write tokens.bin, with an id that ends each file; name and skip files that cannot be read."""
    folder.mkdir()
    totals, end = Totals(), encoding.vocabulary if encoding.end is None else encoding.end
    dtype = dtype_of(encoding.with_end)
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)  # 16 adds gzip's header
    with (folder / FILE).open("wb") as out, progress(folder.name, len(files)) as advance:
        for file in files:
            advance()
            try:
                text = file.read_bytes()
                ids = np.append(encoding.encode(text), end)
            except OSError as error:
                skipped.add(f"{file}: {error.strerror}")
                continue
            except UnicodeDecodeError as error:
                skipped.add(f"{file}: is no UTF-8: {error.reason} at byte {error.start}")
                continue
            if not text:
                skipped.census.leave("files without text", file)
            out.write(ids.astype(dtype).tobytes())
            totals.files += 1
            totals.text_bytes += len(text)
            totals.tokens += len(ids)
            totals.gzip_bytes += len(compressor.compress(text))
    if totals.text_bytes == 0:
        raise DataError(f"{folder}: all {len(files)} files that belong there are empty or unreadable")
    totals.gzip_bytes += len(compressor.flush())
    return totals
