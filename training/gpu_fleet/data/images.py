"""Folders of pictures by class; decoding and augmentation of a picture."""

import hashlib
import io
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.census import Census, shown
from gpu_fleet.data.class_folders import is_unsplit, pictures_of, split_folder
from gpu_fleet.data.dataset import (
    Array,
    CorruptSampleError,
    Dataset,
    Description,
    check_split_keys,
    split_of,
    split_problem,
)

BROKEN = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)  # Pillow's, for broken files
ORIENTATION = ExifTags.Base.Orientation
OF_CAMERAS = {"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"}  # Pillow: may hold an orientation
TURNS = {  # orientation in EXIF -> the turn that makes the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = {TURNS[number] for number in (5, 6, 7, 8)}
# Of SUFFIXES: other formats of Pillow start programs, as EPS does Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "BMP", "DIB", "GIF", "TIFF", "JPEG2000", "PPM", "TGA")
BITS, PHOTOMETRIC, WHITE = 258, 262, np.uint8(255)  # tags of a TIFF: the second is 0 if 0 is white
DARK = 4095  # the largest value of 12 bits, which becomes 15 of 255
FINGERPRINT_BYTES = 4096  # one block of most file systems
KEPT_BYTES = 64 * 2**20  # cache of decoded pictures, in each process that reads
Box = tuple[float, float, float, float]  # left, top, right, bottom
SHIFT_PIXELS = 1 / 8  # part of a side: 4 of 32 pixels, as in the CIFAR experiments of He et al., 2015


def open_split(
    folder: Path, description: Description, settings: config.Data, training: bool
) -> "ImageFolder":
    """Open a split; data.held_out divides a folder without splits. Raises DataError if a class has none."""
    root = folder.parent
    folder = split_folder(root, folder.name)
    if not training and folder.is_dir() and folder.samefile(split_folder(root, "train")):
        raise DataError(f"{shown(folder)}: is the folder of train: no picture would be held out")
    if folder.is_dir() or not is_unsplit(root):
        check_split_keys(settings)
        return ImageFolder(folder, description.classes, settings, training)
    pictures = ImageFolder(root, description.classes, settings, training)
    kept = split_of(len(pictures), settings, training)
    if len(pictures) and not len(kept):
        raise DataError(split_problem(len(pictures), settings, training))
    pictures.keep(kept)
    return pictures


class ImageFolder(Dataset):
    """Pictures of one split: `folder`/CLASS/**/*.png (or another of SUFFIXES)."""

    def __init__(self, folder: Path, classes: tuple[str, ...], settings: config.Data, training: bool) -> None:
        self._settings = settings
        self._training, self._classes = training, classes
        self._kept: dict[int, Array] = {}  # decoded pictures, by index
        self._room = KEPT_BYTES
        self.census = Census()
        self._files = pictures_of(folder, classes, self.census)

    def keep(self, indices: Array) -> None:
        """Remove all pictures except those at `indices`; raises DataError if a class has none to train on."""
        self._files = [self._files[index] for index in indices]
        lacking = sorted(set(range(len(self._classes))) - {number for _, number in self._files})
        if lacking and self._training:
            raise DataError(
                f"data.held_out = {self._settings.held_out}: leaves no picture of class "
                f"{shown(self._classes[lacking[0]])!r} for training; add some, or set another data.split_seed"
            )
        for number in lacking:
            self.census.leave("classes without a held-out picture", self._classes[number])

    def __len__(self) -> int:
        return len(self._files)

    @property
    def files(self) -> list[Path]:
        return [file for file, _ in self._files]

    def name(self, index: int) -> str:
        return str(self._files[index][0])

    def outline(self) -> bytes:
        names = "\0".join(f"{target}/{file.name}" for file, target in self._files)
        return hashlib.sha256(os.fsencode(names)).digest()

    def fingerprint(self, index: int) -> bytes:
        """Return class, name, size and first bytes of the file."""
        file, target = self._files[index]
        try:
            with file.open("rb") as opened:
                begin = opened.read(FINGERPRINT_BYTES)
            return os.fsencode(f"{target}/{file.name}/{file.stat().st_size}/") + begin
        except OSError:  # training counts a sample that cannot be read
            return os.fsencode(f"{target}/{file.name}")

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


@contextmanager
def opened(content: bytes) -> Iterator[Image.Image]:
    """Open a picture; raises CorruptSampleError for bytes that are no picture, also from the block."""
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            yield _of_eight_bits(picture)
    except UnidentifiedImageError as error:  # its text only names an address in memory
        raise CorruptSampleError("is no picture") from error
    except BROKEN as error:
        raise CorruptSampleError(str(error)) from error


def _of_eight_bits(picture: Image.Image) -> Image.Image:
    """Return the picture, with 16 bits of grey scaled to 8; raises CorruptSampleError for other values."""
    if getattr(picture, "is_animated", False) and picture.format != "MPO":  # of a camera, with a small copy
        raise CorruptSampleError(f"holds {picture.n_frames} pictures; write each into a file")  # type: ignore[attr-defined]  # of those
    if picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format == "PPM"):
        values = np.asarray(picture).astype(np.uint16)
        tags: Any = getattr(picture, "tag_v2", {})  # of TIFF
        (bits,) = tags.get(BITS, (16,))
        if 0 < values.max() <= DARK and bits > DARK.bit_length():
            raise CorruptSampleError(
                f"its grey values of 16 bits end at {values.max()}, as those of a camera with 12 bits: it "
                "would be black; scale them to 16 bits or to 8"
            )
        grey = (values >> (bits - 8)).astype(np.uint8)
        if tags.get(PHOTOMETRIC) == 0:
            grey = WHITE - grey
        scaled = Image.fromarray(grey)
        scaled.info |= {} if picture.format == "TIFF" else picture.info  # a TIFF is upright already
        return scaled
    if picture.mode in ("I", "F"):
        raise CorruptSampleError(
            f"has values of unknown range (mode {picture.mode}); write 8 bits, or 16 as PNG or TIFF"
        )
    return picture


def turn_of(picture: Image.Image) -> Image.Transpose | None:
    """Return the turn that makes a picture upright, by the orientation that a camera wrote into it."""
    if picture.format == "TIFF" or not OF_CAMERAS & picture.info.keys():  # Pillow turns TIFF itself
        return None
    try:
        return TURNS.get(picture.getexif().get(ORIENTATION, 1))
    except (*BROKEN, struct.error, LookupError, TypeError):  # the picture itself may be whole
        return None


def upright_size(picture: Image.Image) -> tuple[int, int]:
    return picture.size[::-1] if turn_of(picture) in SIDEWAYS else picture.size


def _upright(picture: Image.Image) -> Image.Image:
    turn = turn_of(picture)
    return picture if turn is None else picture.transpose(turn)


def decode(content: bytes, settings: config.Data, training: bool, chance: np.random.Generator) -> Array:
    """Decode a picture to (3, height, width) uint8, augmented in training. Raises CorruptSampleError."""
    return augmented(pixels_of(content, settings, training, chance), settings, training, chance)


def pixels_of(content: bytes, settings: config.Data, training: bool, chance: np.random.Generator) -> Array:
    """Decode a picture to (height, width, 3) uint8 of the right size; raises CorruptSampleError."""
    with opened(content) as picture:
        if training and settings.augmentation == "resized_crop":
            size = upright_size(picture)
            return _cut(picture, _random_box(size, chance), settings.image_size or size[0])
        if settings.image_size:
            return _cut(picture, _middle_box(upright_size(picture), settings.image_size), settings.image_size)
        return np.asarray(_of_colours(_upright(picture)))


def _of_colours(picture: Image.Image) -> Image.Image:
    """Return red, green and blue; raises CorruptSampleError for a logo or glyph that would be one colour."""
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    extrema: Any = picture.convert("RGBA").getextrema()
    *colours, transparency = extrema
    if all(low == high for low, high in colours) and transparency[0] != transparency[1]:
        raise CorruptSampleError("is of one colour without its transparency; put it on a background")
    return picture.convert("RGB")


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


def _random_box(size: tuple[int, int], chance: np.random.Generator) -> Box:
    """Draw a part of 8 to 100 % of the area (Szegedy et al., 2014)."""
    area = size[0] * size[1] * chance.uniform(0.08, 1.0)
    ratio = np.exp(chance.uniform(np.log(3 / 4), np.log(4 / 3)))
    width = min(size[0], max(1, round(float(np.sqrt(area * ratio)))))
    height = min(size[1], max(1, round(float(np.sqrt(area / ratio)))))
    left, top = chance.integers(0, size[0] - width + 1), chance.integers(0, size[1] - height + 1)
    return int(left), int(top), int(left) + width, int(top) + height


def _middle_box(size: tuple[int, int], side: int) -> Box:
    """Return the middle square of 7/8 of the shorter side (224 of 256); all of it for small pictures."""
    shorter = min(size)
    part = shorter * 7 / 8 if shorter > side else float(shorter)
    left, top = (size[0] - part) / 2, (size[1] - part) / 2
    return left, top, left + part, top + part


def _cut(picture: Image.Image, box: Box, side: int) -> Array:
    """Scale the box to (side, side, 3) uint8. A JPEG is decoded at 1/2, 1/4 or 1/8 if that is enough."""
    width, height = upright_size(picture)
    needed = min(1.0, side / min(box[2] - box[0], box[3] - box[1]))
    enough = math.ceil(width * needed), math.ceil(height * needed)
    picture.draft(None, enough if (width, height) == picture.size else enough[::-1])
    upright = _upright(picture)
    across, down = upright.width / width, upright.height / height
    scaled = (
        box[0] * across,
        box[1] * down,
        min(box[2] * across, upright.width),
        min(box[3] * down, upright.height),
    )
    return np.asarray(_of_colours(upright).resize((side, side), Image.Resampling.BILINEAR, box=scaled))
