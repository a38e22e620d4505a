"""`prepare shards` packs an image folder into tar shards, `prepare index` indexes tars made elsewhere."""

import io
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import click
import numpy as np

from gpu_fleet.core.errors import DataError, counted
from gpu_fleet.data.bucket import BucketFolder, BucketSource
from gpu_fleet.data.census import HIDDEN, Census, check_unlinked, is_hidden, shown
from gpu_fleet.data.class_folders import (
    DESCRIPTION,
    SUFFIXES,
    beside_splits,
    is_unsplit,
    pictures_of,
    split_folder,
)
from gpu_fleet.data.dataset import (
    Array,
    CorruptSampleError,
    Description,
    content_of,
    describe,
    is_bucket,
    write_description,
)
from gpu_fleet.data.images import opened
from gpu_fleet.data.preparation.prepare import Skipped, corrupt_limit_option, make_folder, progress
from gpu_fleet.data.shards import INDEX_DTYPE, RECORDS_DTYPE, DiskFolder, Folder, class_of, tars_in

SPLITS = ("train", "val")
SHUFFLE_SEED = 0  # the same pictures always make the same shards
BLOCK, TAIL_BYTES = 512, 1 << 20  # unit of a tar; bytes read after its end, which is 10 KB of zeros
NOT_PLAIN = "links, sparse files and devices in tars"
NO_PART = "members of tars that are no part of a sample"
Place = tuple[int, int, int]  # first byte, length, CRC-32
RowsOf = Callable[
    [Path, int, Skipped], Array
]  # a tar, its number, the count of the rest -> rows of the index


@click.command(epilog="\b\nExample:\n  gpu-fleet train prepare shards data/digits data/digits-shards")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--samples", type=click.IntRange(min=1), default=1000, show_default=True, help="Per shard.")
@corrupt_limit_option
def shards(*, source: Path, out_dir: Path, samples: int, corrupt_limit: int) -> None:
    """Pack SOURCE (train/CLASS/*.png, val/CLASS/*.png) into OUT_DIR/{train,val}/NNNNN.tar, well mixed."""
    description = describe(source, "SOURCE")
    if description.kind != "images":
        raise DataError(f"SOURCE = {str(source)!r}: holds {description.kind}, not images")
    if is_unsplit(source):
        raise DataError(f"SOURCE = {str(source)!r}: has no folder train; move pictures to train and to val")
    skipped = Skipped(corrupt_limit)
    folders = {split: split_folder(source, split) for split in SPLITS}
    pictures = {
        split: pictures_of(folder, description.classes, skipped.census) for split, folder in folders.items()
    }
    check_unlinked(*([file for file, _ in pictures[split]] for split in SPLITS))
    beside_splits(source, skipped.census)
    make_folder(out_dir)
    for split, labelled in pictures.items():
        write_shards(out_dir / split, shuffled(labelled), samples, skipped)
        folder = DiskFolder(out_dir / split)
        count, tars = index_split(folder, index_shard, skipped), len(tars_in(folder, Census()))
        click.echo(f"{counted(count, 'picture')} in {counted(tars, 'shard')} in {out_dir}/{split}")
    write_description(out_dir, replace(description, kind="shards"))
    skipped.say("picture")


@click.command(epilog="\b\nExample:\n  gpu-fleet train prepare index data/digits-shards")
@click.argument("data_dir", metavar="DATA")
@click.option(
    "--classes", default="", help="NAME,NAME,... in the order of their numbers; default: the numbers."
)
@click.option("--keys", default="", help="KEY,KEY,... of samples of any kind, such as jpg,json,seg.npy.")
@click.option("--endpoint", default="", help="Endpoint of a bucket, if not the cloud's own.")
@corrupt_limit_option
def index(*, data_dir: str, classes: str, keys: str, endpoint: str, corrupt_limit: int) -> None:
    """Write the index of WebDataset tars in DATA/{train,val}, of NAME.png (or .jpg) and NAME.cls.

    With --keys a sample is a dictionary of its members NAME.KEY, for a model or a loss of your own. DATA is a
    folder, or s3:// or oss://bucket/prefix. In a bucket, the command reads every tar once, and writes the
    index beside the tars.
    """
    if classes and keys:
        raise click.UsageError("--classes is for pictures, --keys for other samples: give one")
    names = (classes or keys).split(",") if classes or keys else []
    if wrong := [name for name in names if not name.strip() or names.count(name) > 1]:
        said = f"{'--classes' if classes else '--keys'} = {classes or keys!r}"
        raise DataError(f"{said}: {wrong[0]!r} is {'there twice' if wrong[0].strip() else 'empty'}")
    store, here = (
        BucketSource(data_dir, endpoint, key="DATA") if is_bucket(data_dir) else None,
        Path(data_dir),
    )
    if store is None and not here.is_dir():
        raise DataError(f"DATA = {data_dir!r}: is not a folder")
    splits: dict[str, Folder] = {
        split: BucketFolder(store, split) if store else DiskFolder(here / split) for split in SPLITS
    }
    skipped = Skipped(corrupt_limit)
    description = (
        index_of_any(splits, tuple(keys.split(",")), skipped)
        if keys
        else index_of_pictures(splits, classes, skipped)
    )
    if store is None:
        write_description(here, description)
    else:
        store.ask(lambda bucket: bucket.put(DESCRIPTION, content_of(description)))
    skipped.say("sample")


def index_of_pictures(splits: Mapping[str, Folder], classes: str, skipped: Skipped) -> Description:
    numbers: dict[str, set[int]] = {}
    for split, folder in splits.items():
        click.echo(f"{counted(index_split(folder, index_shard, skipped), 'picture')} in {folder.label}")
        numbers[split] = set(np.load(io.BytesIO(folder.index()))["class"].tolist())
    count = 1 + max(map(max, numbers.values()))
    names = tuple(classes.split(",")) if classes else tuple(str(number) for number in range(count))
    if len(names) < count:
        raise DataError(f"--classes = {classes!r}: names {len(names)} classes, the shards hold {count}")
    for split, used in numbers.items():
        lacking = sorted({*range(len(names))} - used)
        if lacking and split == "train" and not classes:
            raise DataError(
                f"{splits[split].label}: {len(lacking)} classes up to {count - 1} have no picture, such as "
                f"{lacking[0]}; number them from 0 on, or name all by --classes"
            )
        for number in lacking:
            skipped.census.leave(f"classes without a picture in {split}", names[number])
    return Description("shards", names)


def index_of_any(splits: Mapping[str, Folder], keys: tuple[str, ...], skipped: Skipped) -> Description:
    for folder in splits.values():
        rows = index_split(folder, partial(index_records, keys=keys), skipped)
        click.echo(f"{counted(rows // len(keys), 'sample')} in {folder.label}")
    return Description("records", keys=keys)


def shuffled(pictures: Sequence[tuple[Path, int]]) -> list[tuple[Path, int]]:
    """Return the pictures of a split in a shuffled order that is always the same."""
    return [pictures[place] for place in np.random.default_rng(SHUFFLE_SEED).permutation(len(pictures))]


def write_shards(folder: Path, pictures: Sequence[tuple[Path, int]], samples: int, skipped: Skipped) -> None:
    """Write `folder`/NNNNN.tar with `samples` pictures each, without pictures that cannot be decoded."""
    folder.mkdir()
    with progress(folder.name, len(pictures)) as advance, ExitStack() as closing:
        written = 0
        for file, number in pictures:
            advance()
            content = _read(file, skipped)
            if content is None:
                continue
            if written % samples == 0:
                closing.close()  # the shard before
                path = folder / f"{written // samples:05d}.tar"
                tar = closing.enter_context(tarfile.open(path, "w", format=tarfile.USTAR_FORMAT))
            _add(tar, f"{written:09d}{file.suffix.lower()}", content)
            _add(tar, f"{written:09d}.cls", str(number).encode())
            written += 1


def _read(file: Path, skipped: Skipped) -> bytes | None:
    try:
        content = file.read_bytes()
        with opened(content) as picture:
            picture.load()
    except (OSError, CorruptSampleError) as error:
        skipped.add(f"{file}: {error}")
        return None
    return content


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def index_split(folder: Folder, rows_of: RowsOf, skipped: Skipped) -> int:
    """Write the index of a split. Return the number of its rows; raises DataError if it has none."""
    shards = tars_in(folder, skipped.census)
    parts = []
    with progress("index", len(shards)) as advance:
        for number, (name, _) in enumerate(shards):
            with folder.file(name) as file:
                if isinstance(folder, DiskFolder):
                    skipped.census.once(file)
                parts.append(rows_of(file, number, skipped))
            if not len(parts[-1]):
                skipped.census.leave("tars without samples", f"{folder.label}/{name}")
            advance()
    if not sum(map(len, parts)):
        raise DataError(f"{folder.label}: holds no samples in *.tar")
    rows, content = np.concatenate(parts), io.BytesIO()
    np.save(content, rows)
    np.save(content, np.array([size for _, size in shards], dtype=np.int64))
    folder.write_index(content.getvalue())
    return len(rows)


class FileInTar(NamedTuple):
    path: PurePosixPath
    place: Place
    content: bytes


def index_records(file: Path, number: int, skipped: Skipped, *, keys: tuple[str, ...]) -> Array:
    """Return the rows of a tar; names end at the first dot. Raises DataError for two members of one name."""
    samples: dict[str, dict[str, Place]] = {}
    for member in _members(file, skipped):
        name, dot, key = member.path.name.partition(".")
        if not dot or name.startswith("__"):
            skipped.census.leave(NO_PART, f"{file}: {member.path}")
            continue
        places = samples.setdefault(str(member.path.with_name(name)), {})
        if key in places:
            raise _twice(file, member.path)
        places[key] = member.place
        if key not in keys:
            skipped.census.leave("members of tars with other keys", f"{file}: {member.path}")
    rows: list[tuple[int, ...]] = []
    for name, places in samples.items():
        if lacking := [key for key in keys if key not in places]:
            skipped.add(f"{file}: sample {name} has no {lacking[0]}")
        else:
            rows += [(number, *places[key]) for key in keys]
    return np.array(rows, dtype=RECORDS_DTYPE)


def index_shard(file: Path, number: int, skipped: Skipped) -> Array:
    """Return the rows of a tar of pictures and classes; raises DataError for two members of one sample."""
    pictures: dict[str, Place] = {}
    classes: dict[str, tuple[int | None, Place]] = {}
    for member in _members(file, skipped):
        key, suffix = str(member.path.with_suffix("")), member.path.suffix.lower()
        if suffix not in (".cls", *SUFFIXES):
            skipped.census.leave(NO_PART, f"{file}: {member.path}")
        elif key in (classes if suffix == ".cls" else pictures):
            raise _twice(file, member.path)
        elif suffix == ".cls":
            classes[key] = class_of(member.content), member.place
        else:
            pictures[key] = member.place
    rows = []
    for key in sorted(pictures.keys() ^ classes.keys()):
        skipped.add(f"{file}: sample {key} lacks its {'.cls' if key in pictures else 'picture'}")
    for key, place in pictures.items():
        if key not in classes:
            continue
        named, (start, size, _) = classes[key]
        if named is None:
            skipped.add(f"{file}: {key}.cls is no class; allowed: a whole number from 0 to 999999")
        else:
            rows.append((number, *place, named, start, size))
    return np.array(rows, dtype=INDEX_DTYPE)


def _twice(file: Path, name: PurePosixPath) -> DataError:
    """Return the error about a tar with two members for the same part of a sample."""
    return DataError(
        f"{file}: sample {shown(name)} is there twice, and one would be left out; give each sample its "
        "own name"
    )


def _members(file: Path, skipped: Skipped) -> Iterator[FileInTar]:
    """Yield the plain files in a tar, and hard links to those before them; raises DataError."""
    plain: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                target = plain.get(member.linkname) if member.islnk() else member
                if any(map(is_hidden, path.parts)):
                    skipped.census.leave(HIDDEN, f"{file}: {path}")
                elif target is not None and target.isreg() and not target.issparse():
                    plain[member.name] = target
                    content = tar.extractfile(target)
                    assert content is not None
                    read = content.read()
                    yield FileInTar(path, (target.offset_data, target.size, zlib.crc32(read)), read)
                elif not member.isdir():
                    skipped.census.leave(NOT_PLAIN, f"{file}: {path}")
            end = tar.offset  # where tarfile stopped: at zeros, at the end, or at unknown bytes
    except (OSError, ValueError, tarfile.TarError) as error:  # ValueError: of a map of a sparse file
        raise DataError(f"{file}: is no tar, or is cut off: {error}") from error
    with file.open("rb") as behind:
        behind.seek(end)
        tail = behind.read(TAIL_BYTES)
    if len(tail) < BLOCK or tail.strip(b"\0"):
        reason = "is joined to another one or damaged" if tail.strip(b"\0") else "is cut off"
        raise DataError(f"{file}: {reason}, at byte {end} of {file.stat().st_size}; write it anew")
