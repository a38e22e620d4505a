"""Folders of pictures by class, and what happens to a picture on its way to the model."""

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
# Pictures and arrays that are not read; among those that are, they would be left out.
UNREAD = (".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".svg", ".psd", ".dcm", ".npy", ".npz", ".exr")
BROKEN = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)  # what Pillow raises on such files
FINGERPRINT_BYTES = 4096  # one block of most file systems
KEPT_BYTES = 64 * 2**20  # of decoded pictures, in each process that reads
Box = tuple[float, float, float, float]  # left, top, right, bottom
SHIFT_PIXELS = 1 / 8  # of a side: 4 of 32, as in the CIFAR experiments of He et al., 2015


def open_split(
    folder: Path, description: Description, settings: config.Data, training: bool
) -> "ImageFolder":
    """The pictures of a split; raises DataError when a class is missing.

    Of a folder without splits a part is held out; data.held_out and data.split_seed alone say which.
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
    """`folder`/CLASS/**/*.png (or another of SUFFIXES): pictures of one split."""

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
        """Leaves out all other pictures."""
        self._files = [self._files[index] for index in indices]

    @property
    def parts(self) -> int:
        return 0

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        return str(self._files[index][0])

    def fingerprint(self, index: int) -> bytes:
        """Class, name and size of the file, and how it begins."""
        file, target = self._files[index]
        try:
            with file.open("rb") as opened:
                begin = opened.read(FINGERPRINT_BYTES)
            return f"{target}/{file.name}/{file.stat().st_size}/".encode() + begin
        except OSError:  # a sample that cannot be read is counted when it is its turn
            return f"{target}/{file.name}".encode()

    def sample(self, index: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """Picture (3, height, width) uint8 and class () int64."""
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
        """Small data sets are decoded once; where a crop is drawn each time there is nothing to keep."""
        drawn = self._training and self._settings.augmentation == "resized_crop"
        if not drawn and self._room >= pixels.nbytes:
            self._kept[index] = pixels
            self._room -= pixels.nbytes


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a class, at any depth, sorted; raises DataError for one of a kind that is not read."""
    files = list(walked(folder))
    for file in files:
        if file.suffix.lower() in UNREAD:
            raise DataError(f"{file}: would not be read; write it as {', '.join(SUFFIXES)}, or move it away")
    return sorted(file for file in files if file.suffix.lower() in SUFFIXES)


def _check_left_out(folder: Path, classes: Sequence[str]) -> None:
    """Raises DataError for a picture of a split that lies in no folder of a class."""
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
    """What becomes of a picture that is scaled: which box of it, in pixels, and whether it is flipped."""

    box: Box
    flip: bool


def cut_plan(content: bytes, settings: config.Data, training: bool, chance: np.random.Generator) -> Cut:
    """What `decode` would draw for a picture of `settings.image_size`, from its header alone.

    Raises CorruptSampleError.
    """
    with opened(content) as picture:
        crop = training and settings.augmentation == "resized_crop"
        box = _random_box(picture, chance) if crop else _middle_box(picture, settings.image_size)
    return Cut(box, crop and bool(chance.random() < 1 / 2))


def cut_out(content: bytes, cut: Cut, side: int) -> Array:
    """The picture (3, side, side) uint8 of `decode` where it draws `cut`; raises CorruptSampleError."""
    with opened(content) as picture:
        array = _cut(picture, cut.box, side)
    return np.ascontiguousarray((array[:, ::-1] if cut.flip else array).transpose(2, 0, 1))


@contextmanager
def opened(content: bytes) -> Iterator[Image.Image]:
    """A picture; raises CorruptSampleError for bytes that are none, in the block as well."""
    try:
        with Image.open(io.BytesIO(content)) as picture:
            yield _of_eight_bits(picture)
    except UnidentifiedImageError as error:  # which names only the place of the bytes in memory
        raise CorruptSampleError("is no picture") from error
    except BROKEN as error:
        raise CorruptSampleError(str(error)) from error


def _of_eight_bits(picture: Image.Image) -> Image.Image:
    """The picture, its grey values of 16 bits scaled to 8; Pillow would cut them off at 255.

    Raises CorruptSampleError for values whose range nobody knows, and for a file of several pictures.
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
    """Bytes of a picture to (3, height, width) uint8, augmented when training. Raises CorruptSampleError."""
    return augmented(pixels_of(content, settings, training, chance), settings, training, chance)


def pixels_of(content: bytes, settings: config.Data, training: bool, chance: np.random.Generator) -> Array:
    """Bytes of a picture to (height, width, 3) uint8 of the right size; raises CorruptSampleError."""
    with opened(content) as picture:
        if training and settings.augmentation == "resized_crop":
            return _cut(picture, _random_box(picture, chance), settings.image_size or picture.width)
        if settings.image_size:
            return _cut(picture, _middle_box(picture, settings.image_size), settings.image_size)
        return np.asarray(picture.convert("RGB"))


def augmented(array: Array, settings: config.Data, training: bool, chance: np.random.Generator) -> Array:
    """Pixels (height, width, 3) to what the model gets, (3, height, width); shifted and flipped at random."""
    if training and settings.augmentation in ("shift", "shift_flip"):
        array = _shift(array, chance)
    if training and settings.augmentation in ("shift_flip", "resized_crop") and chance.random() < 1 / 2:
        array = array[:, ::-1]
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def _shift(array: Array, chance: np.random.Generator) -> Array:
    """The picture moved by up to an eighth of its sides, edges repeated."""
    down, right = (max(1, round(side * SHIFT_PIXELS)) for side in array.shape[:2])
    top, left = (int(chance.integers(0, 2 * most + 1)) - most for most in (down, right))
    for axis, by in enumerate((top, left)):
        array = array.take(np.arange(by, by + array.shape[axis]), axis, mode="clip")
    return array


def _random_box(picture: Image.Image, chance: np.random.Generator) -> Box:
    """A random part of 8 to 100 % of the area (Szegedy et al., 2014)."""
    area = picture.width * picture.height * chance.uniform(0.08, 1.0)
    ratio = np.exp(chance.uniform(np.log(3 / 4), np.log(4 / 3)))
    width = min(picture.width, max(1, round(float(np.sqrt(area * ratio)))))
    height = min(picture.height, max(1, round(float(np.sqrt(area / ratio)))))
    left, top = chance.integers(0, picture.width - width + 1), chance.integers(0, picture.height - height + 1)
    return int(left), int(top), int(left) + width, int(top) + height


def _middle_box(picture: Image.Image, side: int) -> Box:
    """The middle 7/8 of the shorter side (224 of 256); of small pictures all of it."""
    shorter = min(picture.width, picture.height)
    part = shorter * 7 / 8 if shorter > side else float(shorter)
    left, top = (picture.width - part) / 2, (picture.height - part) / 2
    return left, top, left + part, top + part


def _cut(picture: Image.Image, box: Box, side: int) -> Array:
    """The box scaled to (side, side, 3) uint8. A JPEG is decoded at 1/2, 1/4 or 1/8 where that is enough."""
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
