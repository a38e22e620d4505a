"""TFRecord files of tf.train.Example: an index of all records, so that one read gives any of them.

pip install tfrecord
gpu-fleet train start training/examples/own_tfrecord.toml
"""

import struct
from pathlib import Path

import torch
from tfrecord.example_pb2 import Example
from torch import Tensor
from torch.utils.data import Dataset


class Records(Dataset[tuple[Tensor, Tensor]]):  # the features "inputs" and "class" of FOLDER/SPLIT*.tfrecord
    def __init__(self, split: str, folder: str) -> None:
        files = sorted(Path(folder).glob(f"{split}*.tfrecord"))
        self.places = [(file, *place) for file in files for place in places(file.read_bytes())]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        file, start, size = self.places[index]
        with file.open("rb") as records:
            records.seek(start)
            features = Example.FromString(records.read(size)).features.feature
        return torch.tensor(features["inputs"].float_list.value), torch.tensor(
            features["class"].int64_list.value[0]
        )


def places(content: bytes, end: int = 0) -> list[tuple[int, int]]:
    records = []
    while end < len(content):  # of each: its length (8 bytes), a CRC (4), the record, a CRC (4)
        records.append((end + 12, struct.unpack_from("<Q", content, end)[0]))
        end += 16 + records[-1][1]
    return records
