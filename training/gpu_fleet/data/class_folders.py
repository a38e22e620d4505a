"""Folders of pictures, one for each class: the search for classes and their pictures."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from gpu_fleet.core.errors import DataError
from gpu_fleet.data.census import (
    DANGLING,
    OTHERS,
    TWICE,
    Census,
    check_apart,
    entries,
    is_hidden,
    shown,
    walked,
)

SUFFIXES = (
    *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".avif", ".bmp", ".dib", ".gif"),
    *(".tif", ".tiff", ".jp2", ".j2k", ".ppm", ".pgm", ".pbm", ".pnm", ".tga"),
)
# Pictures and arrays that cannot be read: an error names them, so that no class loses a part of its samples.
UNREAD = (
    *(".heic", ".heif", ".jxl", ".svg", ".psd", ".exr", ".hdr", ".dcm", ".nii", ".npy", ".npz"),
    *(".dng", ".cr2", ".nef", ".arw", ".raw"),
)
# Splits and the names of their folders; the first folder that exists is read.
SPLITS = {"train": ("train",), "val": ("validation", "val", "test")}
NAME_OF_SPLIT = re.compile(r"(train|test|val|valid|dev|eval)(ing|idation|uation)?(?![a-z])", re.IGNORECASE)
DESCRIPTION = "dataset.json"  # a file that describes a prepared data set
PARTS_OF_SAMPLES = re.compile(r"(image|img|picture|photo|label|mask|annotation|target)s?", re.IGNORECASE)
FEWEST = 2  # least number of folders that look like classes, or splits, of a separate data set


def classes_of(root: Path) -> tuple[str, ...]:
    """Return the class folders, sorted; raises DataError if one may be a split, a data set or another one."""
    folder = root if is_unsplit(root) else root / "train"
    names = class_names(folder)
    check_apart(names, f"{shown(folder)}: the folders")
    if len(names) >= FEWEST and all(PARTS_OF_SAMPLES.fullmatch(name) for name in names):
        raise DataError(
            f"{shown(folder)}: {' and '.join(names)} would be classes, but look like the parts of samples, "
            "such as pictures and their masks; read these by data.name, a data set of your own"
        )
    if folder == root:
        _check_one_data_set(root, names)
    return names


def is_unsplit(root: Path) -> bool:
    """Return whether a folder has folders, presumably of classes, but none called train."""
    return not (root / "train").exists() and any(entry.is_dir() for entry in entries(root, Census()))


def split_folder(root: Path, split: str) -> Path:
    """Return the folder of a split: the first of its names that exists, else the name of the split."""
    return next((root / name for name in SPLITS[split] if (root / name).is_dir()), root / split)


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders of a split, sorted; raises DataError without the folder."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: is missing{_found_in(folder.parent)}; an image data set has train/CLASS/*.png and "
            "val/CLASS/*.png, a table is *.parquet, *.jsonl or *.jsonl.gz; `prepare` converts others"
        )
    return tuple(entry.name for entry in entries(folder, Census()) if entry.is_dir())


def _found_in(root: Path) -> str:
    """Return words for the first files of a folder; empty if it is empty, or not there."""
    names = [entry.name for entry in entries(root, Census())] if root.is_dir() else []
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f", and {shown(root)} holds {shown(names[0])}{more}" if names else ""


def _check_one_data_set(root: Path, names: Sequence[str]) -> None:
    """Raise DataError if folders beside no folder `train` look like splits, or like data sets."""
    inner = {name: _folders_without_pictures(root / name) for name in names}
    splits = [name for name in names if NAME_OF_SPLIT.match(name)]
    if len(splits) >= FEWEST or any(inner[name] & set(names) for name in splits):
        raise DataError(
            f"data.path = {str(root)!r}: {' and '.join(splits)} would be classes, but look like splits; "
            "rename them train and val"
        )
    for name, folders in inner.items():
        splits = sorted(folder for folder in folders if NAME_OF_SPLIT.match(folder))
        if len(splits) >= FEWEST or "train" in splits:
            raise DataError(
                f"data.path = {str(root)!r}: {shown(name)} would be a class, and holds a data set, "
                f"with {' and '.join(splits)}; set data.path to one data set, such as {shown(root / name)}"
            )
    if names and all(len(folders) >= FEWEST for folders in inner.values()):
        name, folder = names[0], min(inner[names[0]])
        raise DataError(
            f"data.path = {str(root)!r}: all pictures lie in folders of folders, such as "
            f"{shown(f'{name}/{folder}')}: if {shown(name)} is a data set, set data.path to it; if it is a "
            "class, write train/CLASS and val/CLASS"
        )


def _folders_without_pictures(folder: Path) -> set[str]:
    """Return the names of the folders in a folder; none if it has a picture."""
    names = set()
    for entry in entries(folder, Census()):
        if entry.is_dir():
            names.add(entry.name)
        elif is_picture(entry.name):
            return set()
    return names


def is_picture(name: str) -> bool:
    """Return whether a file is a picture that is read, by its name."""
    return PurePath(name).suffix.lower() in SUFFIXES and not is_hidden(name)


def pictures_of(folder: Path, classes: Iterable[str], census: Census) -> list[tuple[Path, int]]:
    """Return pictures and classes, by both; raises DataError for an empty class or a stray picture."""
    pictures: list[tuple[Path, int]] = []
    seen: dict[tuple[int, int], str] = {}
    names = tuple(classes)
    for number, name in enumerate(names):
        place = folder / name
        if not place.is_dir():
            raise DataError(
                f"{shown(place)}: is missing, but dataset.json or train/ names this class"
                f"{_alike(folder, name)}"
            )
        here = Census()
        of_class = pictures_in(place, here, seen)
        if TWICE in here.left_out:
            other = here.left_out[TWICE][1]
            raise DataError(f"{other}: is a link to a folder of {shown(folder)} that is read: remove one")
        if not of_class:
            raise DataError(
                f"{shown(place)}: holds no pictures, so its class would be empty (left out: {here}); fill "
                f"the folder, or move it away; pictures are {', '.join(SUFFIXES)}"
            )
        census.add(here)
        pictures += [(file, number) for file in of_class]
    _check_left_out(folder, names, census)
    return pictures


def _alike(folder: Path, name: str) -> str:
    """Return a hint at a folder whose name is another spelling of a class; empty if there is none."""
    for other in class_names(folder) if folder.is_dir() else ():
        try:
            check_apart((name, other), "")
        except DataError:
            return f"; {shown(other)!r} is another spelling of it ({other!a}, not {name!a})"
    return ""


def pictures_in(folder: Path, census: Census, seen: dict[tuple[int, int], str] | None = None) -> list[Path]:
    """Return the pictures of a class, at any depth, sorted; raises DataError for some that cannot be read."""
    pictures, unread = [], Census()
    for file in walked(folder, census, seen):
        suffix = file.suffix.lower()
        if suffix in SUFFIXES:
            pictures.append(file)
        elif suffix in UNREAD:
            unread.leave(f"files {suffix}", file)
        else:
            census.leave(OTHERS, file)
    if unread.left_out:
        raise DataError(f"{unread}: would not be read; convert to {', '.join(SUFFIXES)}, or move them away")
    if DANGLING in census.left_out and not pictures:
        raise DataError(f"{shown(folder)}: holds {census}, and no picture")
    return sorted(pictures)


def _check_left_out(folder: Path, classes: Sequence[str], census: Census) -> None:
    """Count the entries of a split that are no class; raises DataError for a picture among them."""
    for entry in entries(folder, census):
        if entry.is_dir() and entry.name in classes:
            continue
        files = walked(Path(entry.path), Census()) if entry.is_dir() else (Path(entry.path),)
        if picture := next((file for file in files if is_picture(file.name)), None):
            raise DataError(
                f"{shown(picture)}: would not be read: it is in no folder of a class, which dataset.json or "
                "train/ names; move it into one, or away"
            )
        census.leave("folders without pictures" if entry.is_dir() else OTHERS, entry.path)


def beside_splits(root: Path, census: Census) -> None:
    """Count folders and files beside the splits of a data set, which are not read."""
    read = {DESCRIPTION, *(split_folder(root, split).name for split in SPLITS)}
    for entry in entries(root, census):
        if entry.name not in read:
            kind = "pictures in no split" if is_picture(entry.name) else OTHERS
            census.leave("folders that are no split" if entry.is_dir() else kind, entry.path)
