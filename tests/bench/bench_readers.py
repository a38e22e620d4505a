"""JPEG shards and tokens read by the trainer, by webdataset and by a plain Dataset, in turns in one process.

All three decode a picture by one function, the trainer's, so that reading alone is compared, and none has
reader processes. The peer of a figure is the faster of the other two. webdataset comes from PyPI.
"""

import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from gpu_fleet.core import config
from gpu_fleet.data.dataset import describe, open_split
from gpu_fleet.data.images import decode
from gpu_fleet.data.loader import RankShare, Reader, batches, training_slices
from gpu_fleet.data.order import SampleOrder
from tests.bench.bench_trainer_gpu import VOCABULARY, write_pictures, write_tokens
from tests.bench.bench_trainer_overhead import peers_python
from tests.bench.entries import entry
from tests.bench.step_loops import Sequences, pair_of

ROOT = Path(__file__).parents[2]
WEBDATASET = "webdataset==1.0.2"
COMMAND = "python -m tests.bench.bench_readers"
PICTURES, SIDE, CROP = 768, 448, 224
LENGTH, TOKENS = 1024, 1024 * 2048
BATCH = 32
BLOCKS, WARM_UP = 30, 3
BATCHES = {"jpeg": 4, "tokens": 100}  # of a block
SHUFFLED = 512  # samples of webdataset's buffer
Batches = Iterator[Any]


def settings_of(kind: str, data: Path) -> config.Data:
    """How the trainer reads the data, and how everybody decodes pictures."""
    if kind == "tokens":
        return config.Data(path=str(data), workers=0, sequence_length=LENGTH)
    return config.Data(path=str(data), workers=0, image_size=CROP, augmentation="resized_crop")


def ours(kind: str, data: Path) -> Batches:
    """What `train start` reads with."""
    settings = settings_of(kind, data)
    samples = open_split(settings, describe(data), "train")
    slices = training_slices(SampleOrder(len(samples), seed=0), RankShare(0, 1, BATCH, 1), position=0)
    return batches(Reader(samples, 0), slices, settings, pinned=False)


class Pictures(Dataset[tuple[Tensor, int]]):
    """The folder of pictures from which the shards were made."""

    def __init__(self, data: Path) -> None:
        self._files = sorted(data.with_name(f"{data.name}-source").glob("train/*/*.jpg"))
        self._settings, self._chance = settings_of("jpeg", data), np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = self._files[index]
        picture = decode(file.read_bytes(), self._settings, training=True, chance=self._chance)
        return torch.from_numpy(picture), int(file.parent.name)


def plain(kind: str, data: Path) -> Batches:
    """What a page of PyTorch reads with."""
    samples: Dataset[Any] = Pictures(data) if kind == "jpeg" else Sequences(data, LENGTH)
    loader = DataLoader(samples, batch_size=BATCH, shuffle=True, drop_last=True)
    return itertools.chain.from_iterable(loader for _ in itertools.count())


def webdataset(kind: str, data: Path) -> Batches:
    """The library's own pipeline, with a shuffle buffer."""
    import webdataset as library  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415 - of that environment

    settings, chance = settings_of(kind, data), np.random.default_rng(0)

    def picture_of(sample: dict[str, bytes]) -> tuple[Tensor, int]:
        pixels = decode(sample["jpg"], settings, training=True, chance=chance)
        return torch.from_numpy(pixels), int(sample["cls"])

    def tokens_of(sample: dict[str, bytes]) -> tuple[Tensor, Tensor]:
        return pair_of(np.frombuffer(sample["bin"], dtype="<u2"))

    tars = [str(tar) for tar in sorted(tars_of(kind, data).glob("*.tar"))]
    read = library.WebDataset(tars, shardshuffle=len(tars), empty_check=False).repeat().shuffle(SHUFFLED)
    return iter(read.map(picture_of if kind == "jpeg" else tokens_of).batched(BATCH, default_collate))


def tars_of(kind: str, data: Path) -> Path:
    """The shards that webdataset reads."""
    return data / "train" if kind == "jpeg" else data / "shards"


READERS: dict[str, Callable[[str, Path], Batches]] = {"ours": ours, "webdataset": webdataset, "plain": plain}


def write_shards(data: Path, count: int = 512) -> None:
    """The sequences of a token file as samples of tars, for webdataset."""
    sequences = np.memmap(data / "train" / "tokens.bin", dtype="<u2", mode="r")
    (data / "shards").mkdir()
    for first in range(0, (len(sequences) - 1) // LENGTH, count):
        with tarfile.open(data / "shards" / f"{first:06d}.tar", "w") as tar:
            for number in range(first, min(first + count, (len(sequences) - 1) // LENGTH)):
                content = sequences[number * LENGTH : (number + 1) * LENGTH + 1].tobytes()
                member = tarfile.TarInfo(f"{number:06d}.bin")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def seconds_of(kind: str, data: Path) -> dict[str, list[float]]:
    """Seconds of each block of batches, of each reader, by turns in this process."""
    reading = {name: reader(kind, data) for name, reader in READERS.items()}
    found: dict[str, list[float]] = {name: [] for name in reading}
    for block in range(WARM_UP + BLOCKS):
        for name, read in reading.items():
            begin_s = time.perf_counter()
            for _ in range(BATCHES[kind]):
                next(read)
            if block >= WARM_UP:
                found[name].append(time.perf_counter() - begin_s)
    return found


def measured(kind: str, data: Path) -> dict[str, list[float]]:
    """The same from a process that has webdataset."""
    python = peers_python("readers", [WEBDATASET])
    words = [str(python), "-m", "tests.bench.bench_readers", kind, str(data)]
    path = f"{ROOT}:{ROOT / 'training'}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def entries_of(kind: str, found: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """The trainer beside the faster of the others, and each of these; the ratio is the median over blocks."""
    each_us = 1e6 / (BATCHES[kind] * BATCH)
    middle = {name: statistics.median(seconds) for name, seconds in found.items()}
    best = min((name for name in middle if name != "ours"), key=lambda name: middle[name])
    made = {}
    for name, seconds in found.items():
        ratio = statistics.median(one / other for one, other in zip(seconds, found[best], strict=True))
        key = f"reader_ratio_{kind}" if name == "ours" else f"{name}_reader_{kind}"
        goal = f"ratio <= 1.0 of the better, {best}" if name == "ours" else "a peer"
        value, peer = middle[name] * each_us, middle[best] * each_us
        made[key] = entry(value, "us per sample", peer, goal, command=COMMAND, ratio=ratio)
    return made


def main() -> None:
    """Prints the entries as one JSON object."""
    entries: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        data = {
            "jpeg": write_pictures(Path(name) / "pictures", PICTURES, SIDE),
            "tokens": write_tokens(Path(name) / "tokens", TOKENS, VOCABULARY),
        }
        write_shards(data["tokens"])
        for kind, folder in data.items():
            entries |= entries_of(kind, measured(kind, folder))
    sys.stdout.write(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        sys.stdout.write(json.dumps(seconds_of(sys.argv[1], Path(sys.argv[2]))) + "\n")
    else:
        main()
