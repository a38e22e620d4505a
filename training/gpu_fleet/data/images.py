"""Folders of pictures by class; decoding and augmentation of a picture."""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from gpu_fleet import config
from gpu_fleet.data.dataset import (
    Array,
    CorruptSampleError,
    Description,
    is_unsplit,
    split_of,
    split_problem,
    walked,
)
from gpu_fleet.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
# Pictures and arrays that cannot be read: an error names them, so that they are not left out silently.
UNREAD = (".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".psd", ".dcm", ".npy", ".npz", ".exr")
BROKEN = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)  # Pillow's, for broken files
FINGERPRINT_BYTES = 4096  # one block of most file systems
KEPT_BYTES = 64 * 2**20  # cache of decoded pictures, in each process that reads
Box = tuple[float, float, float, float]  # left, top, right, bottom
SHIFT_PIXELS = 1 / 8  # part of a side: 4 of 32 pixels, as in the CIFAR experiments of He et al., 2015


def open_split(
    folder: Path, description: Description, settings: config.Data, training: bool
) -> "ImageFolder":
    """Open the pictures of a split; raises DataError if a class is missing.

    If the folder has no splits, data.held_out and data.split_seed alone decide which pictures are held out.
    """
    if folder.is_dir() or not is_unsplit(folder.parent):
        return ImageFolder(folder, description.classes, settings, training)
    pictures = ImageFolder(folder.parent, description.classes, settings, training)
    kept = split_of(len(pictures), settings, training)
    if len(pictures) and not len(kept):
        raise DataError(split_problem(len(pictures), settings, training))
    pictures.keep(kept)
    return pictures


class ImageFolder:
    """Pictures of one split: `folder`/CLASS/**/*.png (or another of SUFFIXES)."""

    def __init__(self, folder: Path, classes: tuple[str, ...], settings: config.Data, training: bool) -> None:
        self._settings = settings
        self._training = training
        self._kept: dict[int, Array] = {}  # decoded pictures, by index
        self._room = KEPT_BYTES
        self._files: list[tuple[Path, int]] = []
        for target, name in enumerate(classes):
            if not (folder / name).is_dir():
                raise DataError(f"{folder / name}: is missing, but dataset.json or train/ names this class")
            self._files += [(file, target) for file in pictures_in(folder / name)]
        _check_left_out(folder, classes)

    def keep(self, indices: Array) -> None:
        """Remove all pictures except those at `indices`."""
        self._files = [self._files[index] for index in indices]

    @property
    def parts(self) -> int:
        return 0

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        return str(self._files[index][0])

    def fingerprint(self, index: int) -> bytes:
        """Return class, name, size and first bytes of the file."""
        file, target = self._files[index]
        try:
            with file.open("rb") as opened:
                begin = opened.read(FINGERPRINT_BYTES)
            return f"{target}/{file.name}/{file.stat().st_size}/".encode() + begin
        except OSError:  # training counts a sample that cannot be read
            return f"{target}/{file.name}".encode()

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Read picture (3, height, width) uint8 and class () int64; raises CorruptSampleError."""
        file, target = self._files[index]
        pixels = self._kept.get(index)
        if pixels is None:
            try:
                content = file.read_bytes()
            except OSError as error:
                raise CorruptSampleError(str(error)) from error
            pixels = pixels_of(content, self._settings, self._training, chance)
            self._keep(index, pixels)
        return augmented(pixels, self._settings, self._training, chance), np.asarray(target, dtype=np.int64)

    def _keep(self, index: int, pixels: Array) -> None:
        """Cache a decoded picture while there is room, unless training draws a new crop each time."""
        drawn = self._training and self._settings.augmentation == "resized_crop"
        if not drawn and self._room >= pixels.nbytes:
            self._kept[index] = pixels
            self._room -= pixels.nbytes


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of a class, at any depth, sorted; raises DataError for one that cannot be read."""
    files = list(walked(folder))
    for file in files:
        if file.suffix.lower() in UNREAD:
            raise DataError(f"{file}: would not be read; write it as {', '.join(SUFFIXES)}, or move it away")
    return sorted(file for file in files if file.suffix.lower() in SUFFIXES)


def _check_left_out(folder: Path, classes: Sequence[str]) -> None:
    """Raise DataError for a picture of a split that is in no class folder."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name in classes:
            continue
        files = walked(entry) if entry.is_dir() else (entry,)
        if picture := next((file for file in files if file.suffix.lower() in SUFFIXES), None):
            raise DataError(
                f"{picture}: would not be read: it is in no folder of a class, which dataset.json or train/ "
                "names; move it into one, or away"
            )


class Cut(NamedTuple):
    """Part of a picture to scale: a box, in pixels, and whether it is flipped."""

    box: Box
    flip: bool


def cut_plan(content: bytes, settings: config.Data, training: bool, chance: np.random.Generator) -> Cut:
    """Draw the cut that `decode` would draw for a picture of `settings.image_size`, from its header alone.

    Raises CorruptSampleError.
    """
    with opened(content) as picture:
        crop = training and settings.augmentation == "resized_crop"
        box = _random_box(picture, chance) if crop else _middle_box(picture, settings.image_size)
    return Cut(box, crop and bool(chance.random() < 1 / 2))


def cut_out(content: bytes, cut: Cut, side: int) -> Array:
    """Decode to (3, side, side) uint8, as `decode` does if it draws `cut`; raises CorruptSampleError."""
    with opened(content) as picture:
        array = _cut(picture, cut.box, side)
    return np.ascontiguousarray((array[:, ::-1] if cut.flip else array).transpose(2, 0, 1))


@contextmanager
def opened(content: bytes) -> Iterator[Image.Image]:
    """Open a picture; raises CorruptSampleError for bytes that are no picture, also from the block."""
    try:
        with Image.open(io.BytesIO(content)) as picture:
            yield _of_eight_bits(picture)
    except UnidentifiedImageError as error:  # its text only names an address in memory
        raise CorruptSampleError("is no picture") from error
    except BROKEN as error:
        raise CorruptSampleError(str(error)) from error


def _of_eight_bits(picture: Image.Image) -> Image.Image:
    """Return the picture, with grey values of 16 bits scaled to 8; Pillow would clip them at 255.

    Raises CorruptSampleError for values of unknown range, and for a file of several pictures.
    """
    if picture.format == "TIFF" and getattr(picture, "n_frames", 1) > 1:
        raise CorruptSampleError(f"holds {picture.n_frames} pictures; write each into a file")  # type: ignore[attr-defined]  # of TIFF
    if picture.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(picture, dtype=np.uint16) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise CorruptSampleError(
            f"has values of unknown range (mode {picture.mode}); write 8 bits, or 16 as PNG or TIFF"
        )
    return picture


def decode(content: bytes, settings: config.Data, training: bool, chance: np.random.Generator) -> Array:
    """Decode a picture to (3, height, width) uint8, augmented in training. Raises CorruptSampleError."""
    return augmented(pixels_of(content, settings, training, chance), settings, training, chance)


def pixels_of(content: bytes, settings: config.Data, training: bool, chance: np.random.Generator) -> Array:
    """Decode a picture to (height, width, 3) uint8 of the right size; raises CorruptSampleError."""
    with opened(content) as picture:
        if training and settings.augmentation == "resized_crop":
            return _cut(picture, _random_box(picture, chance), settings.image_size or picture.width)
        if settings.image_size:
            return _cut(picture, _middle_box(picture, settings.image_size), settings.image_size)
        return np.asarray(picture.convert("RGB"))


def augmented(array: Array, settings: config.Data, training: bool, chance: np.random.Generator) -> Array:
    """Turn pixels (height, width, 3) into the model's (3, height, width), shifted and flipped in training."""
    if training and settings.augmentation in ("shift", "shift_flip"):
        array = _shift(array, chance)
    if training and settings.augmentation in ("shift_flip", "resized_crop") and chance.random() < 1 / 2:
        array = array[:, ::-1]
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _shift(array: Array, chance: np.random.Generator) -> Array:
    """Move the picture by up to an eighth of its sides, with repeated edges."""
    down, right = (max(1, round(side * SHIFT_PIXELS)) for side in array.shape[:2])
    top, left = (int(chance.integers(0, 2 * most + 1)) - most for most in (down, right))
    for axis, by in enumerate((top, left)):
        array = array.take(np.arange(by, by + array.shape[axis]), axis, mode="clip")
    return array


def _random_box(picture: Image.Image, chance: np.random.Generator) -> Box:
    """Draw a part of 8 to 100 % of the area (Szegedy et al., 2014)."""
    area = picture.width * picture.height * chance.uniform(0.08, 1.0)
    ratio = np.exp(chance.uniform(np.log(3 / 4), np.log(4 / 3)))
    width = min(picture.width, max(1, round(float(np.sqrt(area * ratio)))))
    height = min(picture.height, max(1, round(float(np.sqrt(area / ratio)))))
    left, top = chance.integers(0, picture.width - width + 1), chance.integers(0, picture.height - height + 1)
    return int(left), int(top), int(left) + width, int(top) + height


def _middle_box(picture: Image.Image, side: int) -> Box:
    """Return the middle square of 7/8 of the shorter side (224 of 256); all of it for small pictures."""
    shorter = min(picture.width, picture.height)
    part = shorter * 7 / 8 if shorter > side else float(shorter)
    left, top = (picture.width - part) / 2, (picture.height - part) / 2
    return left, top, left + part, top + part


def _cut(picture: Image.Image, box: Box, side: int) -> Array:
    """Scale the box to (side, side, 3) uint8. A JPEG is decoded at 1/2, 1/4 or 1/8 if that is enough."""
    width, height = picture.size
    needed = min(1.0, side / min(box[2] - box[0], box[3] - box[1]))
    picture.draft(None, (math.ceil(width * needed), math.ceil(height * needed)))
    across, down = picture.width / width, picture.height / height
    scaled = (
        box[0] * across,
        box[1] * down,
        min(box[2] * across, picture.width),
        min(box[3] * down, picture.height),
    )
    return np.asarray(picture.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, box=scaled))
