"""Files in a data set's folder that its reader leaves out are counted and named, or refused."""

import codecs
import csv
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from gpu_fleet import cli
from gpu_fleet.checkpoint import run_identity
from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError
from gpu_fleet.data.census import Census
from gpu_fleet.data.dataset import CorruptSampleError, describe, open_split, open_splits
from gpu_fleet.data.images import decode
from tests.training.examples import resnet_table, train_rank, write_tokens

CHANCE = np.random.default_rng(0)
SPLITS, CLASSES = ("train", "val"), ("cat", "dog")


def pictures(*folders: str | Path, count: int = 2, suffix: str = ".png") -> None:
    for folder in map(Path, folders):
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}{suffix}", "PNG")


def usual() -> None:
    pictures(*(f"{split}/{name}" for split in SPLITS for name in CLASSES))


def beside(*names: str, content: bytes = b"x") -> Callable[[], None]:
    """Return a function that writes the usual folder with more files; a name with a slash is a folder."""

    def lay() -> None:
        usual()
        for name in names:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                Path(name).mkdir(parents=True)
            else:
                Path(name).write_bytes(content)

    return lay


def linked(link: str, target: str) -> Callable[[], None]:
    def lay() -> None:
        usual()
        Path(link).symlink_to(target)

    return lay


def linked_twice() -> None:
    """Write pictures of two classes, each under two names of one inode: any draw parts some."""
    pictures("a", "b", count=8)
    for file in sorted(Path().glob("*/*.png")):
        file.with_suffix(".tif").hardlink_to(file)


def only(*folders: str, suffix: str = ".png") -> Callable[[], None]:
    return lambda: pictures(*folders, suffix=suffix)


def val_of_train() -> None:
    pictures("train/a", "train/b")
    Path("val").symlink_to("train")


def unfilled() -> None:
    pictures("a", "b")
    Path("c").mkdir()


SPLIT = [f"{split}/{name}" for split in SPLITS for name in CLASSES]
FOLDERS: list[tuple[Callable[[], None], str]] = [
    (usual, "4 + 4: nothing"),
    (only(*(f"{folder}/day" for folder in SPLIT)), "4 + 4: nothing"),
    *((only(*SPLIT, suffix=suffix), "4 + 4: nothing") for suffix in (".PNG", ".tif", ".TIFF", ".ppm")),
    (beside("val/2.png"), "val/2.png: would not be read"),
    (only("train/a", "train/b", "test/a", "test/b"), "4 + 4: nothing"),
    (beside("train/.ipynb_checkpoints/1.png"), "hidden files and folders: 1, as ROOT/train/.ipy"),
    (beside("lost+found/", "train/lost+found/"), "hidden files and folders: 2, as ROOT/"),
    (beside("train/cat/._0.png", "train/cat/.DS_Store", "__MACOSX/x"), "hidden files and folders: 3"),
    (beside("train/cat/Thumbs.db", "val/desktop.ini"), "hidden files and folders: 2"),
    (beside("train/cat/a.txt", "train/b.txt"), "files of other kinds: 2, as ROOT/train/cat/a.txt"),
    (beside("x.png"), "pictures in no split: 1, as ROOT/x.png"),
    (beside("labels.csv"), "files of other kinds: 1, as ROOT/labels.csv"),
    (
        only("train/images", "train/masks", "val/images", "val/masks"),
        "ROOT/train: images and masks would be classes, but look like the parts of samples",
    ),
    (beside("train/cat/a\nb.txt"), r"files of other kinds: 1, as ROOT/train/cat/a\nb.txt"),
    (only(*SPLIT, "extra/cat"), "folders that are no split: 1, as ROOT/extra"),
    (linked("train/cat/9.png", "nowhere"), "links that lead nowhere: 1, as ROOT/train/cat/9.png"),
    (linked("train/cat/9.png", "9.png"), "links that lead nowhere: 1, as ROOT/train/cat/9.png"),
    (only(*SPLIT, "train/cat\u200b"), r"'cat' and 'cat\u200b' differ only in spelling"),
    (
        lambda: Path("labels.csv").touch(),
        "ROOT/train: is missing, and ROOT holds labels.csv; an image data set has train/CLASS",
    ),
    (linked("train/cat/9.png", "0.png"), "5 + 4: nothing"),
    (
        linked("val/cat/9.png", "../../train/cat/0.png"),
        "ROOT/train/cat/0.png of train and ROOT/val/cat/9.png of val are links to one file: remove one",
    ),
    (linked("val/cat/more", "../../train/cat"), "ROOT/val/cat/more/0.png of val are links to one file"),
    (linked_twice, "of val are links to one file: remove one"),
    (linked("train/cat/up", "../.."), "links to a folder above: 1, as ROOT/train/cat/up"),
    (beside("val/bird/"), "folders without pictures: 1, as ROOT/val/bird"),
    (beside("train/bird/"), "train/bird: holds no pictures, so its class would be empty"),
    (unfilled, "c: holds no pictures"),
    (
        beside("train/bird/1.txt", "train/bird/2"),
        "(left out: files of other kinds: 2, as ROOT/train/bird/1.txt)",
    ),
    (
        beside("train/cat/1.heic", "train/cat/2.heic"),
        "would not be read: files .heic: 2, as ROOT/train/cat/1.heic",
    ),
    (only(*SPLIT, "val/fox"), "val/fox/0.png: would not be read: it is in no folder"),
    (only(*SPLIT, "train/fox"), "val/fox: is missing"),
    (only(*SPLIT, "train/Cat"), "'Cat' and 'cat' differ only in spelling"),
    (only("train/\xe9", "train/b", "val/e\u0301", "val/b"), r"not '\xe9')"),
    (linked("train/mouse", "cat"), "train/mouse: is a link to a folder of ROOT/train"),
    (only("Training/a", "Training/b", "Testing/a"), "look like splits; rename them train"),
    (only("train_set/a", "test-set/a"), "look like splits; rename them train and val"),
    (val_of_train, "ROOT/val: is the folder of train: no picture would be held out"),
    (only("a", "b", "test/a", "test/b"), "test would be classes, but look like splits"),
    (only("data/train/a", "data/val/a"), "data would be a class, and holds a data set, with"),
    (only("x/a", "x/b", "y/c", "y/d"), "if x is a data set, set data.path to it"),
    (lambda: pictures("a", "b", count=1), "leaves no picture of class"),
]


def census_of(root: Path, **data: Any) -> str:
    """Return the numbers of samples and the census as text, or the error, with ROOT for the folder."""
    settings = config.Data(path=str(root), **data)
    try:
        description = describe(root)
        train, val = open_splits(settings, description)
    except DataError as error:
        return str(error).replace(str(root), "ROOT")
    census = Census()
    for part in (train, val):
        census.add(part.census)
    return f"{len(train)} + {len(val)}: {census}".replace(str(root), "ROOT")


@pytest.mark.parametrize(("lay", "expected"), FOLDERS, ids=[expected for _, expected in FOLDERS])
def test_what_a_folder_of_pictures_holds_is_read_counted_or_refused(lay, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay()

    assert expected in census_of(tmp_path, **({} if Path("train").exists() else {"held_out": 0.5}))


def test_a_file_of_both_splits_goes_into_no_shards_and_no_tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    linked("val/cat/9.png", "../../train/cat/0.png")()
    Path("texts").mkdir()
    for number in range(10):
        Path(f"texts/{number}.txt").write_text("word")
    Path("texts/x.txt").hardlink_to("texts/3.txt")  # the eleventh, which is held out as the first is
    commands = [["shards", ".", "out"], ["tokens", "out", "--source", "texts", "--pattern", "*.txt"]]

    done = [CliRunner().invoke(cli.main, ["prepare", *command]) for command in commands]

    assert [each.exit_code for each in done] == [65, 65]
    assert "train/cat/0.png of train and val/cat/9.png of val are links to one file" in done[0].output
    assert "texts/3.txt of train and texts/x.txt of val are links to one file: remove one" in done[1].output


def test_what_is_left_out_is_said_once_and_is_in_the_result(digits, tmp_path, caplog):
    root = tmp_path / "pictures"
    root.mkdir()
    for split in SPLITS:
        (root / split).mkdir()
        for folder in (digits / split).iterdir():
            (root / split / folder.name).symlink_to(folder)
    (root / "train/notes.txt").touch()

    outcome = train_rank(resnet_table(root, tmp_path / "run", steps=1))

    (said,) = [record.getMessage() for record in caplog.records if "data-left-out" in record.getMessage()]
    example = f"{root}/train/notes.txt"
    assert outcome["left_out"] == {"files of other kinds": {"count": 1, "example": example}}
    assert f"files of other kinds: 1, as {example}" in said


# pixels


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def pixels(content: bytes, **data: Any) -> np.ndarray[Any, Any]:
    return decode(content, config.Data(path="x", **data), False, CHANCE).transpose(1, 2, 0).astype(int)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("kind", "side"), [("JPEG", 0), ("JPEG", 16), ("PNG", 0), ("WEBP", 16), ("TIFF", 16)]
)
def test_a_picture_that_a_camera_turned_is_upright(orientation, kind, side):
    """The stored picture is turned so that its orientation gives the ramp again."""
    ramp = np.tile(np.linspace(0, 255, 96).astype(np.uint8), (64, 1))
    picture = Image.fromarray(np.stack([ramp, ramp, 255 - ramp], axis=-1))
    turns = [0, 0, 0, 3, 1, 5, 2, 6, 4]  # what undoes the orientation, by Pillow's numbers
    turned = picture.transpose(Image.Transpose(turns[orientation])) if orientation > 1 else picture
    mark = Image.Exif()
    mark[0x0112] = orientation
    quality = {"quality": 98} if kind in ("JPEG", "WEBP") else {}

    content = encoded(turned, kind, exif=mark, **quality)
    seen, straight = (pixels(each, image_size=side) for each in (content, encoded(picture, "PNG")))

    assert seen.shape == straight.shape
    assert np.abs(seen - straight).mean() < 4


def test_grey_values_of_sixteen_bits_of_any_file_are_scaled():
    grey = np.array([[0, 256], [32768, 65535]], np.uint16)
    contents = [
        encoded(Image.fromarray(grey), "PNG"),
        encoded(Image.fromarray(grey), "TIFF"),
        encoded(Image.fromarray(65535 - grey), "TIFF", tiffinfo={262: 0}),  # white is zero
        b"P5 2 2 65535\n" + grey.astype(">u2").tobytes(),
    ]

    assert [pixels(each).tolist() for each in contents] == [[[[0] * 3, [1] * 3], [[128] * 3, [255] * 3]]] * 4


@pytest.mark.parametrize("mark", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM", b"no camera"])
def test_a_picture_whose_orientation_cannot_be_read_is_read_as_it_is_stored(mark):
    content = encoded(Image.new("RGB", (4, 6), "red"), "JPEG", exif=mark)

    assert pixels(content).shape == (6, 4, 3)


def test_a_picture_in_its_transparency_alone_is_no_sample():
    shape = np.zeros((8, 8, 4), np.uint8)
    shape[2:4, :, 3] = 255
    coloured = shape.copy()
    coloured[0, 0, 0] = 9

    with pytest.raises(CorruptSampleError, match="is of one colour without its transparency"):
        pixels(encoded(Image.fromarray(shape), "PNG"))
    assert pixels(encoded(Image.fromarray(coloured), "PNG"), image_size=8).shape == (8, 8, 3)


PAGE = Image.new("RGB", (4, 4))
UNKNOWN, OF_TWELVE_BITS = np.ones((2, 2), np.float32), np.full((2, 2), 4095, np.uint16)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"nothing", "is no picture"),
        (encoded(PAGE, "EPS"), "is no picture"),  # it would start Ghostscript, however it is called
        (encoded(Image.fromarray(UNKNOWN), "TIFF"), "mode F"),
        (encoded(Image.fromarray(OF_TWELVE_BITS), "TIFF"), "of 16 bits end at 4095, as those of a camera"),
        *(
            (
                encoded(PAGE, kind, save_all=True, append_images=[Image.new("RGB", (4, 4), "red")]),
                "holds 2 pictures; write each into a file",
            )
            for kind in ("GIF", "WEBP", "PNG", "TIFF")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_picture_or_several_is_no_sample(content, why):
    with pytest.raises(CorruptSampleError, match=why):
        pixels(content)


# tables of text

ROWS = [
    (f"{word} film {n} très", label) for n in range(10) for word, label in (("good", "pos"), ("bad", "neg"))
]


def table(
    rows: Sequence[tuple[str, str]] = ROWS, sign: str = ",", header: str = "text,label", end: str = "\n"
) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=sign, lineterminator=end).writerows([header.split(","), *rows])
    return out.getvalue()


CSV: list[tuple[bytes, str]] = [
    (table().encode(), "18 texts"),
    (table().encode("utf-8-sig"), "18 texts"),
    (table(sign="\t").encode("utf-16"), "18 texts"),
    (codecs.BOM_UTF32_LE + table().encode("utf-32-le"), "18 texts"),
    (table(sign=";").encode(), "18 texts"),
    (table(sign="|").encode(), "18 texts"),
    (table(end="\r").encode(), "18 texts"),
    (table([*ROWS, ("x " * 70_000, "pos")]).encode(), "18 texts"),
    (table([*ROWS, ("a\0b", "pos")]).encode(), "18 texts"),
    (table().encode() + b"\n\n", "left out: empty lines: 2"),
    (table([*ROWS, ("a\nb", "pos")]).encode(), "18 texts"),
    (table().encode() + b"well, good,pos\n", "line 22: 3 fields, and 2 in the header"),
    (table().encode() + b"well\n", "line 22: 1 fields, and 2 in the header"),
    (table().encode("cp1252"), "is no utf-8: byte 0xe8; name the encoding, such as --encoding cp1252"),
    (table().encode("utf-16-le"), r"is no utf-8: byte 0xe8"),
    (table(header="text,label,label").encode(), "has 2 such columns; rename one"),
    (table(header="text,\u200blabel").encode(), r"did you mean \u200blabel?"),
    (table(sign="^").encode(), "with ',' between fields, has no such column"),
    (table([(t, "1" if "good" in t else "1.0") for t, _ in ROWS]).encode(), "differ only in"),
    (table([(t, f"0.{n}7") for n, (t, _) in enumerate(ROWS)]).encode(), "no row to train on"),
    (table().encode() + b'"well,pos\n', "cannot be read as CSV after line 21"),
]


@pytest.mark.parametrize(("content", "expected"), CSV, ids=[expected for _, expected in CSV])
def test_a_table_of_text_is_read_or_refused_in_words_that_help(content, expected, tmp_path):
    (tmp_path / "rows.csv").write_bytes(content)

    done = CliRunner().invoke(cli.main, ["prepare", "text", f"{tmp_path}/rows.csv", f"{tmp_path}/out"])

    assert done.exit_code == (0 if (tmp_path / "out/dataset.json").exists() else 65)
    assert expected in done.output
    assert done.output.replace("\n", "").isprintable()


def test_a_table_of_another_encoding_and_delimiter_is_read_as_told_or_refused_by_name(tmp_path):
    words = ["prepare", "text", f"{tmp_path}/rows.csv", f"{tmp_path}/out"]
    (tmp_path / "rows.csv").write_bytes(table().encode("utf-16-le"))
    without_mark = CliRunner().invoke(cli.main, [*words, "--encoding", "utf-16"])
    (tmp_path / "rows.csv").write_bytes(table(sign="^").encode("cp1252"))

    done = CliRunner().invoke(cli.main, [*words, "--encoding", "cp1252", "--delimiter", "^"])

    assert done.exit_code == 0, done.output
    assert "très".encode() in bytes(np.fromfile(tmp_path / "out/train/tokens.bin", "<u2").astype("u1") - 1)
    assert (without_mark.exit_code, "is no utf-16: " in without_mark.output) == (65, True)


# archives


def member(
    tar: tarfile.TarFile, name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, to: str = ""
) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.type, about.linkname = len(content), kind, to
    tar.addfile(about, io.BytesIO(content))


def shard(file: Path, more: Callable[[tarfile.TarFile], object] = lambda _tar: None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for number in range(4):
            member(tar, f"{number}.png", encoded(Image.new("L", (4, 4), number), "PNG"))
            member(tar, f"{number}.cls", str(number % 2).encode())
        more(tar)


def linked_sample(tar: tarfile.TarFile) -> None:
    member(tar, "9.png", kind=tarfile.LNKTYPE, to="3.png")
    member(tar, "9.cls", b"1")


def pair(tar: tarfile.TarFile, number: bytes) -> None:
    member(tar, "9.jpg")
    member(tar, "9.cls", number)


TARS: list[tuple[Callable[[tarfile.TarFile], object], str]] = [
    (lambda _: None, "4 pictures in ROOT/train"),
    (linked_sample, "5 pictures in ROOT/train"),
    (lambda tar: member(tar, "a/", kind=tarfile.DIRTYPE), "0 samples skipped; left out: nothing"),
    (
        lambda tar: member(tar, "9.png", kind=tarfile.SYMTYPE, to="3.png"),
        "links, sparse files and devices in tars: 1",
    ),
    (lambda tar: member(tar, "._9.png", b"x"), "hidden files and folders: 1, as ROOT/train/0.tar: ._9"),
    (lambda tar: member(tar, "0.txt", b"x"), "members of tars that are no part of a sample: 1, as"),
    (lambda tar: member(tar, "9.cls", b"1"), "skipped 1 of at most 10: ROOT/train/0.tar: sample 9"),
    (lambda tar: member(tar, "9.jpg", b"1"), "sample 9 lacks its .cls"),
    (lambda tar: pair(tar, b"cat"), "9.cls is no class; allowed: a whole number from 0 to 999999"),
    (lambda tar: pair(tar, b"99999999999"), "9.cls is no class; allowed: a whole number from 0 to 999999"),
    (lambda tar: pair(tar, b"3"), "1 classes up to 3 have no picture, such as 2"),
]


def indexed(root: Path, *words: str) -> str:
    done = CliRunner().invoke(cli.main, ["prepare", "index", str(root), *words])
    assert done.exit_code in (0, 65), done.exception
    return done.output.replace(str(root), "ROOT")


@pytest.mark.parametrize(("more", "expected"), TARS, ids=[expected for _, expected in TARS])
def test_what_a_tar_holds_is_indexed_counted_or_refused(more, expected, tmp_path):
    shard(tmp_path / "train/0.tar", more)
    shard(tmp_path / "val/0.tar")

    assert expected in indexed(tmp_path)


def test_a_tar_is_not_in_both_splits_and_a_broken_sparse_file_is_named(tmp_path):
    shard(tmp_path / "a/train/0.tar")
    (tmp_path / "a/val").symlink_to("train")
    shard(tmp_path / "b/train/0.tar")
    with tarfile.open(tmp_path / "b/train/1.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(broken := tarfile.TarInfo("9.png"))
        broken.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
        broken.size = 9
        tar.addfile(broken, io.BytesIO(b"no number"))

    same, sparse = (indexed(tmp_path / name) for name in "ab")

    assert "ROOT/train/0.tar and" in same
    assert "ROOT/val/0.tar are links to one file: remove one" in same
    assert "1.tar: is no tar, or is cut off: not enough values" in sparse


def test_a_hard_link_of_a_tar_is_read_where_it_leads(tmp_path):
    shard(tmp_path / "train/0.tar", linked_sample)
    shard(tmp_path / "val/0.tar")
    indexed(tmp_path)
    data = open_split(config.Data(path=str(tmp_path)), describe(tmp_path), "train")

    assert (data.sample(3, CHANCE)[0] == data.sample(4, CHANCE)[0]).all()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda content: content + content, "0.tar: is joined to another one or damaged, at byte"),
        (lambda content: content[: 512 * 10], "0.tar: is cut off, at byte"),
        (lambda content: content[: 512 * 10 + 7], "0.tar: is"),
    ],
)
def test_a_tar_of_which_a_part_would_not_be_read_is_refused(damage, expected, tmp_path):
    for split in SPLITS:
        shard(tmp_path / split / "0.tar")
    (tmp_path / "train/0.tar").write_bytes(damage((tmp_path / "train/0.tar").read_bytes()))

    assert expected in indexed(tmp_path)


def test_tars_beside_the_index_are_counted(tmp_path):
    shard(tmp_path / "train/0.tar")
    shard(tmp_path / "val/0.tar")
    with tarfile.open(tmp_path / "train/1.tar", "w"):
        pass
    said = indexed(tmp_path)
    (tmp_path / "train/._0.tar").touch()

    assert "left out: tars without samples: 1, as ROOT/train/1.tar" in said
    assert "tars without a sample in index.npy: 1, as ROOT/train/1.tar" in census_of(tmp_path)


def test_the_shards_of_a_folder_leave_out_what_the_folder_does(tmp_path):
    pictures(*(tmp_path / "in" / folder for folder in SPLIT))
    (tmp_path / "in/train/cat/a.txt").touch()
    frames = [Image.new("RGB", (4, 4), shade) for shade in ("red", "blue")]
    frames[0].save(tmp_path / "in/train/cat/b.gif", save_all=True, append_images=frames[1:])

    done = CliRunner().invoke(cli.main, ["prepare", "shards", f"{tmp_path}/in", f"{tmp_path}/out"])

    assert "1 picture skipped; left out: files of other kinds: 1, as" in done.output
    assert "b.gif: holds 2 pictures" in done.output


# text files


def test_text_files_that_are_not_read_are_counted(tmp_path):
    source = tmp_path / "texts"
    for name in ("test/0.txt", *(f"{n}.txt" for n in range(1, 12)), "._1.txt", "a.md"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name * 20)
    (source / "empty.txt").touch()
    words = ["prepare", "tokens", f"{tmp_path}/out", "--source", str(source), "--pattern", "*.txt"]

    done = CliRunner().invoke(cli.main, words)

    assert done.exit_code == 0, done.output
    assert f"hidden files and folders: 1, as {source}/._1.txt" in done.output
    assert f"files that do not match *.txt: 1, as {source}/a.md" in done.output
    assert f"files without text: 1, as {source}/empty.txt" in done.output
    assert "of 11 files" in done.output


def test_a_second_file_of_tokens_is_counted_and_splits_of_text_files_are_not_mixed(tmp_path: Path) -> None:
    data = write_tokens(tmp_path / "tokens")
    shutil.copy(data / "train/tokens.bin", data / "train/more.bin")
    settings = config.Data(path=str(data), sequence_length=16)

    training = open_split(settings, describe(data), "train")
    done = CliRunner().invoke(cli.main, ["prepare", "tokens", f"{tmp_path}/out", "--source", str(data)])

    assert training.census.left_out["files of other kinds"] == (1, str(data / "train/more.bin"))
    assert (done.exit_code, "would mix train and val" in done.output) == (65, True)


def test_a_relabelled_picture_is_other_data_also_if_its_name_is_no_text(tmp_path):
    pictures(*(tmp_path / folder for folder in SPLIT), count=600)
    (tmp_path / "train/cat/0.png").rename(tmp_path / "train/cat" / os.fsdecode(b"\xff.png"))
    settings = config.Data(path=str(tmp_path))
    before = run_identity.fingerprint(open_split(settings, describe(tmp_path), "train"))
    for here, there in (("cat", "dog"), ("dog", "cat")):
        for number in (301, 302):
            place = tmp_path / f"train/{here}/{number}.png"
            place.rename(tmp_path / f"train/{there}/{number}x.png")

    assert len(before) == 16
    assert run_identity.fingerprint(open_split(settings, describe(tmp_path), "train")) != before
