"""Tables: Parquet, JSON lines, or a folder that save_to_disk of Hugging Face's datasets wrote."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import default_collate

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, DataError, MissingPackageError
from gpu_fleet.core.user_code import Own
from gpu_fleet.data.census import OTHERS, TWICE, Census, entries, shown, walked
from gpu_fleet.data.class_folders import DESCRIPTION, SPLITS, is_picture
from gpu_fleet.data.dataset import check_split_keys, split_of, split_problem
from gpu_fleet.data.own_data import OwnData, adapted

MARKS = ("dataset_dict.json", "state.json")  # files from save_to_disk of Hugging Face's datasets
CANNOT_CAST = "Couldn't cast"  # of datasets
SHOWN = 60  # bytes of a damaged line in a message
UNSPLIT = "rows"  # not "all", which means all splits to the library
TABLES = {".parquet": "parquet", ".jsonl": "json", ".jsonl.gz": "json"}
# Rows in a format or compression that is not read.
UNREAD = re.compile(r"\.(jsonl|parquet|ndjson|csv|tsv|arrow|feather|orc|avro)(\.\w+)?$", re.IGNORECASE)
NO_TENSOR = re.compile("date|time|duration|decimal")  # Arrow's names of column types
REAL = ("float", "double", "halffloat")  # Arrow's names of column types
INSTEAD = "write it as (smaller) numbers or text, or leave it out of data.columns"
LARGEST = 2**63 - 1  # of torch's whole numbers, which are signed: a larger one would become negative


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
    splits: dict[str, dict[Path, list[Path]]] = {}  # by the folder above the name that gives the split
    for file in _rows_in(root, census):
        split, above = _split_of(file, root)
        splits.setdefault(split, {}).setdefault(above, []).append(file)
    for split, tables in splits.items():
        _check_one_table(split, tables, root)
    files = {split: [file for some in tables.values() for file in some] for split, tables in splits.items()}
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


def _check_one_table(split: str, tables: dict[Path, list[Path]], root: Path) -> None:
    """Raise DataError for files of a split from several folders, or beside the one called as the split."""
    if split != UNSPLIT and len(tables) > 1:
        names = " and ".join(shown(files[0].relative_to(root)) for files in list(tables.values())[:2])
        raise _refused(
            root,
            f"holds several data sets, with {names}: set data.path to one of them, or put the files of "
            f"all into one folder {split}",
        )
    files = [file for some in tables.values() for file in some if file.parent.name.lower() != split]
    if len(files) > 1 and any(file.name.lower().partition(".")[0] == split for file in files):
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


def _split_of(file: Path, root: Path) -> tuple[str, Path]:
    """Return a file's split, by its outermost folder of such a name or by all parts, and the folder above."""
    parts = file.relative_to(root).parts
    lower = [part.lower() for part in parts]
    names = [name for some in SPLITS.values() for name in some]
    for depth, part in enumerate(lower[:-1]):
        if part in names:
            return part, Path(*parts[:depth])
    said = [next((name for name in names if part.startswith(name)), UNSPLIT) for part in lower]
    splits = sorted({*said} - {UNSPLIT})
    if len(splits) > 1:
        raise _refused(
            root,
            f"{shown(file.relative_to(root))} says {' and '.join(splits)}: put it into a folder called "
            f"{', '.join(names[:-1])} or {names[-1]}, or rename it",
        )
    if not splits:
        return UNSPLIT, Path()
    depth = said.index(splits[0])
    if lower[depth][len(splits[0]) :][:1].isalpha():  # such as trainer_log
        return UNSPLIT, Path()
    return splits[0], Path(*parts[:depth])


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
        if column not in rows.column_names:
            raise ConfigError(
                f"data.columns: {column!r} is no column of {root}; it has {', '.join(rows.column_names)}"
            )
    chosen = rows.select_columns(list(settings.columns)) if settings.columns else rows
    _check_columns(chosen, root, collated=collate is not None)
    table = adapted(
        chosen.with_format("torch"), f"{root}, {split!r}", collate or default_collate, ConfigError
    )
    table.census = census
    return table


def _check_columns(rows: Any, root: Path, *, collated: bool) -> None:
    """Raise DataError for a column that becomes no tensor, or lacks values that no collate function fills."""
    for name in rows.column_names:
        column = rows.data.column(name)
        if problem := _no_tensor(column) or ("" if collated else _lacking(column)):
            raise DataError(f"data.columns: {name!r} of {root} {problem}")


def _no_tensor(column: Any) -> str:
    kind, largest = str(column.type), max(map(_largest, column.chunks), default=0)
    if NO_TENSOR.match(kind):
        return f"is of type {kind}, which becomes no tensor; {INSTEAD}"
    if largest > LARGEST:
        return f"has {largest}, and a tensor holds whole numbers up to {LARGEST}; {INSTEAD}"
    return ""


def _lacking(column: Any) -> str:
    """Return the words about missing values, also in lists; a real number that is missing becomes NaN."""
    from pyarrow import types  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    missing = column.null_count
    while not missing and (types.is_list(column.type) or types.is_large_list(column.type)):
        column = column.combine_chunks().flatten()
        missing = column.null_count
    if not missing or str(column.type) in REAL:
        return ""
    return f"has {missing} rows without a value; leave them out, or set data.collate = 'FILE.py:NAME'"


def _largest(column: Any) -> int:
    """Return the largest unsigned number of 64 bits in a column or its nested ones; 0 if it has none."""
    from pyarrow import compute, types  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional

    if types.is_nested(column.type):
        inner = column.flatten()
        return max(map(_largest, inner if isinstance(inner, list) else [inner]), default=0)
    return (compute.max(column).as_py() or 0) if types.is_uint64(column.type) else 0


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
            with (gzip.open if file.suffix.lower() == ".gz" else open)(file, "rb") as lines:
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
            return dict(datasets.load_dataset(kind, data_files=names)) if names else {}
        loaded = datasets.load_from_disk(str(root))
    except DataError as error:
        raise _refused(root, str(error)) from error
    except Exception as error:  # the library passes on errors of the readers of its files
        lines = [file for some in files.values() for file in some if _kind(file.name) == "json"]
        reason = damaged_line(lines) or str(error.__cause__ or error).partition("\n")[0]
        if reason.startswith(CANNOT_CAST):
            reason = "its files differ in their columns or types: set data.path to one of them"
        raise DataError(f"data.path = {str(root)!r}: cannot be read: {reason}") from error
    return dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {UNSPLIT: loaded}
