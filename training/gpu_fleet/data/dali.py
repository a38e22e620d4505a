"""Pictures of shards, decoded by NVIDIA DALI: on the GPU if there is one, else on the CPU.

Reader processes read the bytes and draw box and flip, with the same random numbers as the other decoder. DALI
decodes the box, scales and flips it, in a thread beside the training. So order, augmentation and resume are
the same; pixels differ only by the rounding of the two decoders.

Operators: https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/ (fn.decoders.image_slice,
fn.resize, fn.crop_mirror_normalize, fn.external_source); a pipeline without a GPU has device_id=None.
"""

import importlib
import logging
import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_fleet import config
from gpu_fleet.data.dataset import Array, CorruptSampleError
from gpu_fleet.data.images import Cut, cut_out, cut_plan, plain
from gpu_fleet.data.loader import IGNORED, Batch, CountOf, Reader
from gpu_fleet.data.shards import ShardFolder
from gpu_fleet.errors import ConfigError, DataError, MissingPackageError

DALI = "dali"  # data.decoder
PACKAGE = "nvidia-dali-cuda130"  # for CUDA 13, like the wheel of torch
CROPS = ("none", "resized_crop")
log = logging.getLogger(__name__)


def check(settings: config.Data, kind: str) -> None:
    """Raise ConfigError for settings that DALI does not support here, MissingPackageError without DALI."""
    if settings.decoder != DALI:
        return
    if kind != "shards":
        raise ConfigError(f"data.decoder = 'dali': decodes shards, and these data are {kind}")
    if settings.augmentation not in CROPS:
        raise ConfigError(
            f"data.augmentation = {settings.augmentation!r}: data.decoder = 'dali' knows "
            f"{' and '.join(map(repr, CROPS))}"
        )
    if not settings.image_size:
        raise ConfigError("data.image_size = 0: data.decoder = 'dali' needs a size")
    try:
        importlib.import_module("nvidia.dali")
    except ImportError as error:
        raise MissingPackageError(
            f"data.decoder = 'dali': needs NVIDIA DALI, which is not here: pip install {PACKAGE}"
        ) from error


class EncodedReader:
    """Reader of batches of encoded pictures (see data.loader.Reader), which DALI decodes."""

    def __init__(
        self,
        data: ShardFolder,
        settings: config.Data,
        seed: int,
        device: torch.device,
        count: CountOf | None = None,
    ) -> None:
        """Prepare a reader; `count` is given if loss or metric is a user's own: see Batch.paired."""
        self._data, self._settings, self._device, self._count = data, settings, device, count
        self._reader = Reader(data, seed)

    def __getitem__(self, part: Any) -> Batch:
        """Read a batch; its inputs are those of `packed`, and a corrupt sample has no bytes and no target."""
        indices = part.indices.tolist()
        self._data.expect(indices)
        pictures: list[tuple[bytes, Cut] | None] = []
        targets: list[int] = []
        corrupt: list[str] = []
        for epoch, index in zip(part.epochs.tolist(), indices, strict=True):
            try:
                content, target = self._data.encoded(index)
                content = plain(content)
                cut = cut_plan(
                    content, self._settings, self._data.training, self._reader.chance(epoch, index)
                )
                pictures.append((content, cut))
                targets.append(target)
            except CorruptSampleError as error:
                corrupt.append(f"{self._data.name(index)}: {error}")
                pictures.append(None)
                targets.append(IGNORED)
        inputs = packed(pictures) | {"index": torch.tensor(indices)}
        labels = torch.tensor(targets)
        return Batch(inputs, labels, tuple(corrupt), int((labels != IGNORED).sum()))

    def decoded(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches with pictures (n, 3, side, side) uint8 on the device, some decoded ahead."""
        decoder = Decoder(self._settings, self._device)
        waiting: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="dali") as thread:
            for batch in batches:
                waiting.append(thread.submit(self._decoded, decoder, batch))
                if len(waiting) > self._settings.prefetch:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _decoded(self, decoder: "Decoder", batch: Batch) -> Batch:
        try:
            pictures = decoder.pictures(batch.inputs)
        except RuntimeError as error:  # it does not name the sample
            log.warning("event=dali-failed error=%r", str(error).strip().splitlines()[0])
            batch, pictures = self._one_by_one(batch)
        done = replace(batch, inputs=pictures)
        return done if self._count is None else done.paired(self._count)

    def _one_by_one(self, batch: Batch) -> tuple[Batch, Tensor]:
        """Decode with the other decoder, which names corrupt samples."""
        side, targets, corrupt = self._settings.image_size, batch.targets.clone(), list(batch.corrupt)
        pictures = torch.zeros(len(targets), 3, side, side, dtype=torch.uint8)
        for place, pair in enumerate(unpacked(batch.inputs)):
            if pair is None:
                continue
            try:
                pictures[place] = torch.from_numpy(cut_out(*pair, side))
            except CorruptSampleError as error:
                targets[place] = IGNORED
                corrupt.append(f"{self._data.name(int(batch.inputs['index'][place]))}: {error}")
        counted = int((targets != IGNORED).sum())
        if not counted:
            raise DataError(f"a whole batch of {len(targets)} samples is corrupt, among them {corrupt[0]}")
        return replace(batch, targets=targets, corrupt=tuple(corrupt), counted=counted), pictures.to(
            self._device
        )


def packed(pictures: list[tuple[bytes, Cut] | None]) -> dict[str, Tensor]:
    """Pack pictures into a few tensors, which pass quickly between processes; None is one without bytes.

    Returns `bytes` (bytes of all pictures,) uint8, `ends` (n,) int64, `boxes` (n, 4) float32 (left, top,
    right, bottom), and `flips` (n,) int32.
    """
    contents = [b"" if picture is None else picture[0] for picture in pictures]
    cuts = [Cut((0.0, 0.0, 1.0, 1.0), flip=False) if picture is None else picture[1] for picture in pictures]
    return {
        "bytes": torch.from_numpy(np.frombuffer(b"".join(contents), dtype=np.uint8).copy()),
        "ends": torch.tensor([len(content) for content in contents]).cumsum(0),
        "boxes": torch.tensor([cut.box for cut in cuts]),
        "flips": torch.tensor([cut.flip for cut in cuts], dtype=torch.int32),
    }


def unpacked(inputs: dict[str, Tensor]) -> Iterator[tuple[bytes, Cut] | None]:
    """Yield the pictures that `packed` was given."""
    start, everything = 0, inputs["bytes"].numpy()
    for end, box, flip in zip(
        inputs["ends"].tolist(), inputs["boxes"].tolist(), inputs["flips"].tolist(), strict=True
    ):
        content = everything[start:end].tobytes()
        yield (content, Cut(tuple(box), bool(flip))) if content else None
        start = end


class Decoder:
    """Pipeline of DALI, built for the first batch; after a failure the next batch builds another."""

    def __init__(self, settings: config.Data, device: torch.device) -> None:
        self._settings, self._device = settings, device
        self._pipeline: Any = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]  # torch has no hints here

    def pictures(self, inputs: dict[str, Tensor]) -> Tensor:
        """Decode the result of `packed` to pictures (n, 3, side, side) uint8; raises DALI's RuntimeError."""
        pairs = list(unpacked(inputs))
        present = [pair for pair in pairs if pair is not None]
        side = self._settings.image_size
        pictures = torch.zeros(len(pairs), 3, side, side, dtype=torch.uint8, device=self._device)
        if not present:
            return pictures
        try:
            decoded = self._run(present)
        except RuntimeError:
            self._pipeline = None
            raise
        if len(present) == len(pairs):
            return decoded
        pictures[[place for place, pair in enumerate(pairs) if pair is not None]] = decoded
        return pictures

    def _run(self, present: list[tuple[bytes, Cut]]) -> Tensor:
        from nvidia.dali.plugin.pytorch import (  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional
            feed_ndarray,
        )

        if self._pipeline is None or self._pipeline.max_batch_size < len(present):
            self._pipeline = built(self._settings.image_size, len(present), self._device)
        for name, values in fed(present).items():
            self._pipeline.feed_input(name, values)
        (output,) = self._pipeline.run()
        tensor = output.as_tensor()
        decoded = torch.empty(tensor.shape(), dtype=torch.uint8, device=self._device)
        if self._stream is None:
            feed_ndarray(tensor, decoded)
            return decoded
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        feed_ndarray(tensor, decoded, cuda_stream=self._stream)
        self._stream.synchronize()  # only this thread waits; then any stream may use the pictures
        return decoded


def fed(present: list[tuple[bytes, Cut]]) -> dict[str, list[Array]]:
    """Return the pipeline's inputs for each picture: bytes, the slice to decode, the box within it, a flip.

    A box may have fractions of pixels, a slice may not: the slice is the whole pixels around the box.
    """
    boxes = np.array([cut.box for _, cut in present])
    first, last = np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])
    within = (boxes - np.tile(first, 2)).astype(np.float32)
    return {
        "encoded": [np.frombuffer(content, dtype=np.uint8) for content, _ in present],
        "start": list(first.astype(np.int32)),
        "shape": list((last - first).astype(np.int32)),
        "roi_start": list(np.ascontiguousarray(within[:, [1, 0]])),  # height before width, like sizes
        "roi_end": list(np.ascontiguousarray(within[:, [3, 2]])),
        "mirror": [np.array(cut.flip, dtype=np.int32) for _, cut in present],
    }


def built(side: int, size: int, device: torch.device) -> Any:
    """Build the pipeline for batches of up to `size` pictures."""
    from nvidia.dali import (  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional
        fn,
        pipeline_def,
        types,
    )

    on_gpu = device.type == "cuda"

    def source(name: str, dtype: Any, dimensions: int) -> Any:
        return fn.external_source(name=name, dtype=dtype, ndim=dimensions)

    def graph() -> Any:
        pictures = fn.decoders.image_slice(
            source("encoded", types.UINT8, 1),
            start=source("start", types.INT32, 1),
            shape=source("shape", types.INT32, 1),
            axis_names="WH",
            device="mixed" if on_gpu else "cpu",
            output_type=types.RGB,
            adjust_orientation=False,  # like the other decoder
        )
        pictures = fn.resize(
            pictures,
            size=[side, side],
            roi_start=source("roi_start", types.FLOAT, 1),
            roi_end=source("roi_end", types.FLOAT, 1),
            interp_type=types.INTERP_LINEAR,
            antialias=True,
        )
        return fn.crop_mirror_normalize(
            pictures,
            mirror=source("mirror", types.INT32, 0),
            dtype=types.UINT8,
            output_layout="CHW",
            mean=[0.0],
            std=[1.0],
        )

    pipeline = pipeline_def(graph)(
        batch_size=size,
        num_threads=threads(),
        device_id=(device.index or 0) if on_gpu else None,
        prefetch_queue_depth=1,  # the thread itself decodes ahead
        exec_pipelined=False,
        exec_async=False,
    )
    pipeline.build()
    return pipeline


def threads() -> int:
    """Return the number of CPU threads for work that no GPU does: half of this rank's share of the cores."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, math.floor(len(os.sched_getaffinity(0)) / ranks / 2))
