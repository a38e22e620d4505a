"""NVIDIA DALI decodes what the other decoder would: box and flip drawn alike, resumed with the same bits.

The package has 420 MB: GPU_FLEET_TEST_DALI=1 brings it into build/dali once; without it the test of the real
one is skipped aloud. On the CPU it decodes all that it decodes on a GPU.
"""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from gpu_fleet import cli, config
from gpu_fleet.data.dali import PACKAGE, EncodedReader, fed, packed, unpacked
from gpu_fleet.data.dataset import describe, open_split
from gpu_fleet.data.images import Cut
from gpu_fleet.data.loader import Reader, batches
from gpu_fleet.data.order import SampleOrder
from tests.training.commands import tried_alone
from tests.training.examples import changed, resnet_table

ROOT = Path(__file__).parents[2]
PINS = ("nvidia-dali-cuda120==2.4.0",)  # on the CPU it is the same code as for CUDA 13
WANTED = "GPU_FLEET_TEST_DALI"
SIDE = 24


def photograph(number: int) -> bytes:
    """A smooth JPEG of a size of its own."""
    width, height = 40 + 7 * (number % 5), 36 + 5 * (number % 3)
    down, across = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin((down * a + across * b + number) / 9) for a, b in ((1, 0), (0, 1), (1, 1))]
    out = io.BytesIO()
    Image.fromarray(np.stack(waves, axis=2).astype(np.uint8)).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty JPEGs of two classes in shards, and eight to measure by."""
    root = tmp_path_factory.mktemp("photographs")
    for split, count in (("train", 40), ("val", 8)):
        for number in range(count):
            file = root / "folders" / split / "ab"[number % 2] / f"{number:02d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(photograph(number))
    words = ["prepare", "shards", str(root / "folders"), str(root / "shards"), "--samples", "10"]
    assert CliRunner().invoke(cli.main, words).exit_code == 0
    return root / "shards"


def settings_of(shards: Path, augmentation: str = "resized_crop") -> config.Data:
    return config.Data(
        path=str(shards), decoder="dali", image_size=SIDE, augmentation=augmentation, workers=0
    )


def read(reader: object, settings: config.Data, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    part = SampleOrder(8, seed=3).slice(0, count)
    batch = next(batches(reader, iter([part]), settings, pinned=False))
    return batch.inputs, batch.targets


def both(shards: Path, split: str, augmentation: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Eight pictures by this reader and by the other."""
    settings = settings_of(shards, augmentation)
    data = open_split(settings, describe(shards), split)
    encoded = EncodedReader(data, settings, 3, torch.device("cpu"))
    return [read(reader, settings, 8) for reader in (encoded, Reader(data, 3))]


CASES = [("train", "resized_crop"), ("train", "none"), ("val", "resized_crop")]


@pytest.mark.parametrize(("split", "augmentation"), CASES)
def test_where_dali_fails_the_pictures_are_those_of_the_other_decoder(
    split: str, augmentation: str, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("Critical error in pipeline")

    monkeypatch.setattr("gpu_fleet.data.dali.Decoder.pictures", failing)

    (pictures, targets), (others, other_targets) = both(shards, split, augmentation)

    assert torch.equal(pictures, others)
    assert torch.equal(targets, other_targets)


def test_what_a_process_is_sent_is_what_was_packed() -> None:
    found = [(b"abc", Cut((0.5, 1.0, 7.25, 8.0), flip=True)), None, (b"d", Cut((0, 0, 1, 1), flip=False))]

    assert list(unpacked(packed(found))) == found


def test_a_slice_has_whole_pixels_around_its_box() -> None:
    values = fed([(b"abc", Cut((0.5, 1.25, 7.25, 8.0), flip=True))])

    assert (values["start"][0].tolist(), values["shape"][0].tolist()) == ([0, 1], [8, 7])
    assert (values["roi_start"][0].tolist(), values["roi_end"][0].tolist()) == ([0.25, 0.5], [7.0, 7.25])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "data.image_size = 0: data.decoder = 'dali' needs a size"),
        (
            {"image_size": 8, "augmentation": "shift"},
            "data.decoder = 'dali' knows 'none' and 'resized_crop'",
        ),
        (
            {"image_size": 8, "kind": "images"},
            "data.decoder = 'dali': decodes shards, and these data are images",
        ),
        ({"image_size": 8}, f"needs NVIDIA DALI, which is not here: pip install {PACKAGE}"),
    ],
)
def test_what_dali_cannot_decode_is_named(
    data: dict[str, object], message: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    table = changed(resnet_table(shards, tmp_path), data={"augmentation": "none", "decoder": "dali", **data})
    if data.get("kind") == "images":
        table["data"]["path"] = str(shards.parent / "folders")

    status, said = tried_alone(table, tmp_path)

    assert (status, said.count("error: ")) == (65, 1)
    assert message in said


PROGRAM = """
import sys
from pathlib import Path
import torch
from gpu_fleet.data.dali import EncodedReader
from tests.training.examples import changed, resnet_table, train_rank
from tests.training.test_dali import CASES, SIDE, both

if __name__ == "__main__":
    shards, out = Path(sys.argv[1]), Path(sys.argv[2])
    for split, augmentation in CASES:
        (pictures, targets), (others, other_targets) = both(shards, split, augmentation)
        apart = (pictures.int() - others.int()).abs().float().mean().item()
        assert torch.equal(targets, other_targets)
        print("apart", split, augmentation, apart)

    def table(name, path=shards, workers=0, **data):
        data = {"path": str(path), "decoder": "dali", "image_size": SIDE, "workers": workers, **data}
        base = resnet_table(shards, out / name, steps=4)
        return changed(base, data={"augmentation": "resized_crop", **data}, run={"batch_size": 8})

    straight = train_rank(table("straight"))
    stopped = train_rank(table("stopped", workers=1), 2)
    resumed = train_rank(table("stopped", workers=1))
    print("steps", stopped["step"], resumed["resumed_from_step"])
    print("same", resumed["parameters_sha256"] == straight["parameters_sha256"])

    broken = out / "broken"
    broken.mkdir()
    for split in ("train", "val"):
        (broken / split).mkdir()
        for file in (shards / split).glob("*.tar"):
            content = bytearray(file.read_bytes())
            if file.name == "00001.tar":
                content[512:540] = b"no picture".ljust(28)
            (broken / split / file.name).write_bytes(content)
    from click.testing import CliRunner
    from gpu_fleet import cli
    print(CliRunner().invoke(cli.main, ["prepare", "index", str(broken)]).output)
    done = train_rank(table("broken-run", broken, augmentation="none"))
    print("broken", done["outcome"])
"""


@pytest.fixture(scope="module")
def python_path() -> str:
    """Where the real package is; set up in build/ where that is asked for."""
    here = [str(ROOT), str(ROOT / "training")]
    folder = Path(os.environ.get("GPU_FLEET_DALI_SITE", ROOT / "build" / "dali"))
    if not (folder / "nvidia").exists():
        if not os.environ.get(WANTED):
            pytest.skip(f"set {WANTED}=1 to install {', '.join(PINS)} into build/dali once")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *PINS]
        subprocess.run(install, check=True)
    return os.pathsep.join([*here, str(folder)])


def test_the_real_dali_decodes_resumes_and_names_what_is_broken(
    python_path: str, shards: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, str(tmp_path / "program.py"), str(shards), str(tmp_path / "runs")]
    (tmp_path / "runs").mkdir()

    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": python_path}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    apart = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("apart")]
    assert len(apart) == len(CASES)
    assert max(apart) < 2  # levels of 255; another box or a missing flip is tens apart
    assert "steps 2 2\nsame True" in done.stdout
    assert "broken finished" in done.stdout
    assert "00001.tar byte 512: is no picture" in done.stderr
    assert "event=dali-failed" not in done.stderr  # or the other decoder would have done the work
