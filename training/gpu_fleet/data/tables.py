"""Tables: Parquet, JSON lines, or a folder that save_to_disk of Hugging Face's datasets wrote."""

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, DataError, MissingPackageError, counted
from gpu_fleet.core.user_code import Own
from gpu_fleet.data.census import OTHERS, TWICE, Census, entries, shown, walked
from gpu_fleet.data.class_folders import DESCRIPTION, SPLITS, is_picture
from gpu_fleet.data.dataset import check_split_keys, split_of, split_problem
from gpu_fleet.data.own_data import OwnData, adapted

MARKS = ("dataset_dict.json", "state.json")  # files from save_to_disk of Hugging Face's datasets
CANNOT_CAST = re.compile("Couldn't cast|((Integer|Float) value .*)")  # of datasets and Arrow
FORMS = {bool: "truth values", str: "text", int: "numbers", float: "numbers"}  # of values of JSON
SHOWN = 60  # bytes of a damaged line in a message
UNSPLIT = "rows"  # not "all", which means all splits to the library
TABLES = {".parquet": "parquet", ".jsonl": "json", ".jsonl.gz": "json"}
# Rows in a format or compression that is not read.
UNREAD = re.compile(r"\.(jsonl|parquet|ndjson|csv|tsv|arrow|feather|orc|avro)(\.\w+)?$", re.IGNORECASE)
NO_TENSOR = re.compile("date|time|duration|decimal")  # Arrow's names of column types
MIXED = "arrow.json"  # in Arrow's name of a column whose texts datasets would read as JSON: "007" as 7
CHANGED = re.compile(r"Column\(/(\w+).*\) changed from")  # of Arrow, about such values later on
LOOKED_AT = 10 << 20  # bytes of the first file in which datasets itself finds a mixed column
LINE = 1 << 26  # bytes, the longest
DIFFERENT = "holds values of different kinds, as 7 and '7'; write them alike, or leave it out of data.columns"
REAL = ("float", "double", "halffloat")  # Arrow's names of column types
INSTEAD = "write it as (smaller) numbers or text, or leave it out of data.columns"
AS_PARQUET = "write the table as Parquet, where text stays text, or leave it out of data.columns"
LARGEST = 2**63 - 1  # of torch's whole numbers, which are signed: a larger one would become negative
LARGEST_REAL = torch.finfo(torch.float32).max  # datasets makes each real number one of 32 bits


def is_table(root: Path) -> bool:
    """Return whether a path is a table; rows deep inside a folder of pictures do not make it one."""
    if (root / DESCRIPTION).exists():
        return False
    if _kind(root.name) or any((root / mark).is_file() for mark in MARKS):
        return True
    if not root.is_dir():
        return False
    listed = entries(root, Census())
    inner = [entry for folder in listed if folder.is_dir() for entry in entries(Path(folder.path), Census())]
    if any(_kind(entry.name) for entry in [*listed, *inner]):
        return True
    has_rows = False
    for file in walked(root, Census()):
        if is_picture(file.name):
            return False
        has_rows |= bool(_kind(file.name))
    return has_rows


def table_files(root: Path, census: Census) -> dict[str, list[Path]]:
    """Return the files by split, or under UNSPLIT; raises DataError for files of no split or of two."""
    if _kind(root.name):
        return {UNSPLIT: [root]}
    if _is_saved(root):
        return {}
    files: dict[str, list[Path]] = {}
    for file in _rows_in(root, census):
        files.setdefault(_split_of(file, root), []).append(file)
    for split, some in files.items():
        _check_one_table(split, some, root)
    if len({_kind(file.name) for some in files.values() for file in some}) > 1:
        raise _refused(root, "has both Parquet and JSON lines; give one of them")
    if "train" not in files and len(files) == 1:
        return {UNSPLIT: next(iter(files.values()))}
    if files and "train" not in files:
        raise _refused(root, f"has {' and '.join(sorted(files))}, and no train: rename one of them to train")
    if UNSPLIT in files:
        names = ", ".join(shown(file.relative_to(root)) for file in files[UNSPLIT][:4])
        raise _refused(
            root,
            f"{names} beside files of train: begin their names, or those of their folders, with train, val "
            "or test, or move them away",
        )
    return files


def _check_one_table(split: str, files: list[Path], root: Path) -> None:
    """Raise DataError for files of a split in several folders, or beside the one called as the split."""
    if other := next((file for file in files if file.parent != files[0].parent), None):
        names = " and ".join(shown(file.relative_to(root)) for file in (files[0], other))
        folder = "folder" if split == UNSPLIT else f"folder {split}"
        raise _refused(
            root,
            f"holds several data sets or classes, with {names}: set data.path to one of them, or put the "
            f"files of all into one {folder}, and such names into a column",
        )
    known = set(files)
    if twin := next((file for file in files if file.suffix == ".gz" and file.with_suffix("") in known), None):
        name = shown(twin.relative_to(root))
        raise _refused(root, f"{name} is beside the same file uncompressed: move one of them away")
    is_called_so = any(file.name.lower().partition(".")[0] == split for file in files)
    if len(files) > 1 and is_called_so and files[0].parent.name.lower() != split:
        names = " and ".join(shown(file.relative_to(root)) for file in files[:2])
        raise _refused(
            root, f"{names} would be one table: move one of them away, or put both into a folder {split}"
        )


def _is_saved(root: Path) -> bool:
    """Return whether save_to_disk of datasets wrote a folder; raises DataError for a table beside it."""
    if not any((root / mark).is_file() for mark in MARKS):
        return False
    files = list(walked(root, Census()))
    is_saved = any(file.suffix == ".arrow" for file in files)
    table = next((file for file in files if _kind(file.name)), None)
    if is_saved and table is not None:
        name = shown(table.relative_to(root))
        raise _refused(root, f"save_to_disk wrote it, and {name} is beside its files: move one of them away")
    return is_saved


def _rows_in(root: Path, census: Census) -> Iterator[Path]:
    """Yield the files of rows; count others in `census`. Raises DataError for rows that are not read."""
    for file in walked(root, census):
        if _kind(file.name):
            census.once(file)
            if parted := [part for part in file.relative_to(root).parts[:-1] if "=" in part]:
                raise _refused(
                    root,
                    f"the value in the name of the folder {shown(parted[0])} would not be read; write it as "
                    "a column",
                )
            yield file
        elif UNREAD.search(file.name):
            raise _refused(
                root,
                f"{shown(file.relative_to(root))} would not be read: write it as .parquet, .jsonl or "
                ".jsonl.gz, or move it away",
            )
        else:
            census.leave("pictures beside the table" if is_picture(file.name) else OTHERS, file)
    if TWICE in census.left_out:
        raise _refused(root, f"{census.left_out[TWICE][1]} is a link to a folder that is read: remove one")


def _refused(root: Path, problem: str) -> DataError:
    return DataError(f"data.path = {str(root)!r}: {problem}")


def _split_of(file: Path, root: Path) -> str:
    """Return a file's split, by its outermost folder of such a name or by all parts."""
    lower = [part.lower() for part in file.relative_to(root).parts]
    names = [name for some in SPLITS.values() for name in some]
    if named := next((part for part in lower[:-1] if part in names), None):
        return named
    said = [next((name for name in names if part.startswith(name)), UNSPLIT) for part in lower]
    splits = sorted({*said} - {UNSPLIT})
    if len(splits) > 1:
        raise _refused(
            root,
            f"{shown(file.relative_to(root))} says {' and '.join(splits)}: put it into a folder called "
            f"{', '.join(names[:-1])} or {names[-1]}, or rename it",
        )
    if not splits:
        return UNSPLIT
    part = lower[said.index(splits[0])]
    return UNSPLIT if part[len(splits[0]) :][:1].isalpha() else splits[0]  # such as trainer_log


def _kind(name: str) -> str:
    """Return the kind of a table file, by the name that datasets uses; empty for another file."""
    return next((kind for suffix, kind in TABLES.items() if name.lower().endswith(suffix)), "")


def open_table(settings: config.Data, split: str, collate: Own | None) -> OwnData | None:
    """Open a split of a table as dictionaries of columns; None without held-out rows. Raises DataError."""
    root, census = Path(settings.path), Census()
    splits = _loaded(root, census)
    name = next((name for name in SPLITS[split] if name in splits), None)
    rows = splits[name] if name else None
    for other in splits.keys() - {UNSPLIT, name, *SPLITS["train"]} if split == "val" else ():
        census.leave(f"rows of split {shown(other)}, which is not read", root, len(splits[other]))
    if rows is not None:
        check_split_keys(settings)
    elif UNSPLIT in splits:
        kept = split_of(len(splits[UNSPLIT]), settings, training=split == "train")
        rows = splits[UNSPLIT].select(kept) if len(kept) else None
        if rows is None and split == "train":
            raise DataError(split_problem(len(splits[UNSPLIT]), settings, training=True))
    if rows is None:
        if split == "val":
            return None
        other = f"has no split 'train', but {', '.join(splits)}" if splits else "holds no rows"
        raise _refused(root, other)
    for column in settings.columns:
        if settings.columns.count(column) > 1:
            raise ConfigError(f"data.columns: {column!r} is there twice")
        if column not in rows.column_names:
            raise ConfigError(
                f"data.columns: {column!r} is no column of {root}; it has {', '.join(rows.column_names)}"
            )
    chosen = rows.select_columns(list(settings.columns)) if settings.columns else rows
    _check_columns(chosen, root, collated=collate is not None)
    _check_lines(chosen, _lines_in(root) if split == "train" else [])  # those of all splits
    table = adapted(
        chosen.with_format("torch"), f"{root}, {split!r}", collate or default_collate, ConfigError
    )
    table.census = census
    return table


def _check_columns(rows: Any, root: Path, *, collated: bool) -> None:
    """Raise DataError for a column that becomes no tensor, or lacks values that no collate function fills."""
    for name in rows.column_names:
        column = rows.data.column(name)
        if (
            problem := _no_tensor(column, root)
            or _bent(column, name, root)
            or ("" if collated else _lacking(column))
        ):
            raise DataError(f"data.columns: {name!r} of {root} {problem}")


def _no_tensor(column: Any, root: Path) -> str:
    kind = str(column.type)
    if kind.startswith("timestamp") and _lines_in(root):  # JSON has no such values
        return f"holds only texts of dates, which are read as {kind}; {AS_PARQUET}"
    if MIXED in kind:
        return DIFFERENT
    return f"is of type {kind}, which becomes no tensor; {INSTEAD}" if NO_TENSOR.match(kind) else ""


def _bent(column: Any, name: str, root: Path) -> str:
    """Return the words about a number that a tensor would hold as another one, or as an infinity."""
    largest, real = (
        max((_largest(part, kind) for part in column.chunks), default=0) for kind in ("uint64", "double")
    )
    if real > LARGEST:  # Arrow reads such a whole number of JSON as a real one
        largest = _first_large(name, root) or largest
    if not -LARGEST - 1 <= largest <= LARGEST:
        return f"has {largest}, and a tensor holds whole numbers up to {LARGEST}; {INSTEAD}"
    if real > LARGEST_REAL:
        return (
            f"has {real:g}, and a tensor holds real numbers of 32 bits, up to {LARGEST_REAL:.6g}; {INSTEAD}"
        )
    return ""


def _lines_in(root: Path) -> list[Path]:
    """Return the files of JSON lines of all splits."""
    files = (file for some in table_files(root, Census()).values() for file in some)
    return [file for file in files if _kind(file.name) == "json"]


def _check_lines(rows: Any, files: list[Path]) -> None:
    """Raise DataError for a later value of another kind than its column, as datasets makes of "007" a 7.

    A file beside datasets' cache notes that they were looked at, which takes 16 s of a core a gigabyte.
    """
    if len(files) < 2 and all(file.stat().st_size <= LOOKED_AT for file in files):  # noqa: PLR2004 - a later one
        return
    columns = zlib.crc32(repr(rows.column_names).encode())
    notes = [Path(f"{cached['filename']}.{columns:08x}.alike") for cached in rows.cache_files]
    if any(note.exists() for note in notes):
        return
    import pyarrow  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional
    from pyarrow import json as arrow  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    kinds = pyarrow.schema([rows.data.schema.field(name) for name in rows.column_names])
    alone = arrow.ParseOptions(explicit_schema=kinds, unexpected_field_behavior="ignore")
    for file in files:
        try:
            for _ in arrow.open_json(file, arrow.ReadOptions(block_size=LINE), alone):
                pass
        except pyarrow.ArrowInvalid as error:  # any other is of the form of the file, which datasets has read
            if changed := CHANGED.search(str(error)):
                raise DataError(f"data.columns: {changed[1]!r} of {shown(file)} {DIFFERENT}") from error
    for note in notes:
        with suppress(OSError):  # of a cache that others may only read
            note.touch()


def _first_large(column: str, root: Path) -> int:
    """Return the first whole number in a column of JSON lines that no tensor holds; 0 if there is none."""
    for file in _lines_in(root):
        with _opened(file) as lines:
            values = (json.loads(line).get(column) for line in lines if line.strip())
            wholes = (leaf for value in values for leaf in tree_leaves(value) if type(leaf) is int)
            if (large := next((n for n in wholes if not -LARGEST - 1 <= n <= LARGEST), None)) is not None:
                return large
    return 0


def _lacking(column: Any) -> str:
    """Return the words about missing values; a real number that is missing becomes NaN."""
    if not (missing := _missing(column)):
        return ""
    said = counted(missing, "row")
    return f"has {said} without a value; leave such rows out, or set data.collate = 'FILE.py:NAME'"


def _missing(column: Any) -> int:
    """Return the number of missing values, also in lists at any depth, except real numbers."""
    from pyarrow import compute, types  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    missing = 0 if str(column.type) in REAL else column.null_count
    while not missing and any(
        of(column.type) for of in (types.is_list, types.is_large_list, types.is_fixed_size_list)
    ):
        column = compute.list_flatten(column)
        missing = 0 if str(column.type) in REAL else column.null_count
    return missing


def _largest(column: Any, kind: str) -> Any:
    """Return the largest finite amount in a column of a kind, or in nested ones; 0 if there is none."""
    from pyarrow import compute, types  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    if types.is_nested(column.type):
        inner = column.flatten()
        parts = inner if isinstance(inner, list) else [inner]
        return max((_largest(part, kind) for part in parts), default=0)
    if str(column.type) != kind:
        return 0
    return compute.max(compute.abs(column.filter(compute.is_finite(column)))).as_py() or 0


def _with_rows(files: list[Path], split: str, census: Census) -> list[Path]:
    """Return the files with rows, as datasets reads no empty one; raises DataError if a split has none."""
    empty = [file for file in files if _is_empty(file)]
    for file in empty:
        census.leave("files without rows", file)
    if len(empty) == len(files) and split != UNSPLIT:
        raise DataError(
            f"{shown(empty[0].name)} has no rows, so {split} would be empty: fill it, or move it away"
        )
    return [file for file in files if file not in empty]


def _check_forms(files: Iterable[Path]) -> None:
    """Raise DataError for a column whose values of a later file may change, as datasets converts them.

    It makes them alike with the first file: "007" becomes 7, and 7 becomes true. Numbers may become wider.
    """
    known: dict[str, tuple[Any, Path]] = {}
    for file in files:
        for column, form in (_forms_of_rows if file.suffix == ".parquet" else _forms_of_line)(file).items():
            before, first = known.setdefault(column, (form, file))
            are_numbers = isinstance(before, np.dtype) and isinstance(form, np.dtype)
            if not (np.can_cast(form, before) if are_numbers else form == before):
                raise DataError(
                    f"column {column!r} is {before} in {shown(first.name)} and {form} in {shown(file.name)}: "
                    "write it alike in all files"
                )


def _forms_of_rows(file: Path) -> dict[str, Any]:
    """Return the forms of the columns of a Parquet file, and of the values inside of them."""
    from pyarrow import ArrowException, parquet, types  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    def forms(name: str, kind: Any) -> Iterator[tuple[str, Any]]:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        for inner in map(kind.field, range(kind.num_fields)):
            yield from forms(f"{name}.{inner.name}" if types.is_struct(kind) else name, inner.type)
        if types.is_string(kind) or types.is_large_string(kind):
            yield name, FORMS[str]
        elif types.is_primitive(kind) and (number := np.dtype(kind.to_pandas_dtype())).kind in "biuf":
            yield name, FORMS[bool] if number.kind == "b" else number

    try:
        fields = list(parquet.read_schema(file))
    except (OSError, ArrowException):  # the reader reports a damaged file
        return {}
    return {name: form for field in fields for name, form in forms(field.name, field.type)}


def _forms_of_line(file: Path) -> dict[str, Any]:
    """Return the forms of the values in the first line of JSON lines; none if it cannot be read."""

    def forms(name: str, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict | list):
            for key, inner in value.items() if isinstance(value, dict) else ((name, item) for item in value):
                yield from forms(
                    f"{name}.{key}".removeprefix(".") if isinstance(value, dict) else name, inner
                )
        elif type(value) in FORMS:
            yield name, FORMS[type(value)]

    try:
        with _opened(file) as lines:
            return dict(forms("", json.loads(lines.readline())))
    except (OSError, EOFError, ValueError):  # the reader reports a damaged file
        return {}


def _opened(file: Path) -> Any:
    return (gzip.open if file.suffix.lower() == ".gz" else open)(file, "rb")


def _is_empty(file: Path) -> bool:
    from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    if file.suffix != ".parquet":
        return file.is_file() and file.stat().st_size == 0
    try:
        return bool(parquet.read_metadata(file).num_rows == 0)
    except (OSError, ArrowException):  # the reader reports a damaged file
        return False


def damaged_line(files: Iterable[Path]) -> str:
    """Return a message about the first line of JSON lines that cannot be read; empty if there is none."""
    for file in files:
        number, line = 0, b""
        try:
            with _opened(file) as lines:
                for line in lines:
                    number += 1
                    if line.strip():
                        json.loads(line)
        except EOFError:
            return f"{shown(file.name)} ends in the middle of its compressed data: copy it again"
        except ValueError as error:
            text = line.rstrip()
            is_cut = isinstance(error, json.JSONDecodeError) and error.pos >= len(
                text.decode(errors="replace")
            )
            what = "is cut off: write it anew, or" if is_cut else "is no JSON in UTF-8: mend or"
            begin = shown(text[:SHOWN].decode(errors="replace"))
            return f"line {number} of {shown(file.name)} {what} remove the line: {begin}"
        except OSError:
            continue
    return ""


def _loaded(root: Path, census: Census) -> dict[str, Any]:
    """Load the splits of a table, mapped into memory; Parquet and JSON go once through datasets' cache."""
    files = table_files(root, census)
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"data.path = {str(root)!r}: tables need two more packages: pip install datasets 'pyarrow<26'"
        ) from error
    datasets.disable_progress_bars()
    try:
        if files:
            kind = _kind(next(iter(files.values()))[0].name)
            names = {
                split: [str(file) for file in _with_rows(some, split, census)]
                for split, some in files.items()
            }
            names = {split: some for split, some in names.items() if some}
            _check_forms(Path(file) for some in names.values() for file in some)
            return dict(datasets.load_dataset(kind, data_files=names)) if names else {}
        loaded = datasets.load_from_disk(str(root))
    except DataError as error:
        raise _refused(root, str(error)) from error
    except Exception as error:  # the library passes on errors of the readers of its files
        lines = [file for some in files.values() for file in some if _kind(file.name) == "json"]
        reason = damaged_line(lines) or str(error.__cause__ or error).partition("\n")[0]
        if cast := CANNOT_CAST.match(reason):
            why = f" ({cast[1]})" if cast[1] else ""
            reason = (
                f"its files differ in their columns or types{why}: write them alike, or set data.path to one"
            )
        raise DataError(f"data.path = {str(root)!r}: cannot be read: {reason}") from error
    return dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {UNSPLIT: loaded}
