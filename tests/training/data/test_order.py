"""The ranks read each sample exactly once an epoch, for any number of ranks."""

from collections import Counter
from itertools import islice
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet.data.loader import RankShare, Reader, evaluation_slices, training_slices
from gpu_fleet.data.order import SampleOrder, permute

sizes = st.integers(1, 2000)
seeds = st.integers(0, 2**63)


@given(size=sizes, seed=seeds, epoch=st.integers(0, 10**6))
def test_every_epoch_holds_every_sample_once(size, seed, epoch):
    places = np.arange(size, dtype=np.uint64)

    assert sorted(permute(places, size, seed, epoch).tolist()) == list(range(size))


def test_epochs_and_seeds_differ_in_order_and_leave_few_samples_where_they_were():
    places = np.arange(100_000, dtype=np.uint64)

    orders = [permute(places, 100_000, seed, epoch).astype(float) for seed in (0, 1) for epoch in (0, 1, 5)]

    assert len({order.tobytes() for order in orders}) == 6
    for order in orders:
        assert (order == places).sum() < 10  # one is expected of a random permutation
        assert abs(np.corrcoef(places.astype(float), order)[0, 1]) < 0.02  # 6 standard deviations of chance


@given(
    size=st.integers(8, 300),
    worlds=st.lists(st.sampled_from([1, 2, 4]), min_size=3, max_size=3),
    steps=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    accumulation=st.sampled_from([1, 2]),
)
def test_changes_of_the_world_lose_and_repeat_no_sample(size, worlds, steps, accumulation):
    batch_size, order, position = 8, SampleOrder(size, seed=11), 0
    seen: Counter[tuple[int, int]] = Counter()

    for world, count in zip(worlds, steps, strict=True):
        for rank in range(world):
            share = RankShare(rank, world, batch_size, accumulation)
            for part in islice(training_slices(order, share, position), count * accumulation):
                seen.update(zip(part.epochs.tolist(), part.indices.tolist(), strict=True))
        position += count * batch_size

    assert sum(seen.values()) == position
    assert set(seen.values()) == {1}
    for epoch in range(position // size):  # those that came to their end
        assert {index for at, index in seen if at == epoch} == set(range(size))


@given(world=st.integers(1, 5), micro_batch=st.integers(1, 7), size=st.integers(1, 100))
def test_an_evaluation_counts_every_sample_once(world, micro_batch, size):
    counted: Counter[int] = Counter()

    lengths = set()
    for rank in range(world):
        parts = list(evaluation_slices(size, RankShare(rank, world, micro_batch * world, accumulation=1)))
        lengths.add(len(parts))
        for part, count in parts:
            counted.update(part.indices.tolist()[:count])

    assert counted == Counter(range(size))
    assert len(lengths) == 1  # collectives inside the model stay in step


@pytest.mark.parametrize("position", [0, 10**9, 10**15])
def test_any_position_is_found_without_walking_there(position):
    share = RankShare(rank=1, world=2, batch_size=64, accumulation=1)

    part = next(training_slices(SampleOrder(10**7, seed=1), share, position))

    assert part.epochs[0] == (position + 32) // 10**7
    assert len(part.indices) == 32


@given(
    size=st.integers(1, 5000),
    position=st.integers(0, 10**6),
    world=st.sampled_from([1, 3]),
    accumulation=st.sampled_from([1, 2]),
)
@settings(max_examples=10)
def test_an_order_found_in_blocks_is_the_order(size, position, world, accumulation):
    order, share = SampleOrder(size, seed=5), RankShare(world - 1, world, 240, accumulation)
    width = share.micro_batch

    found = list(islice(training_slices(order, share, position), 20 * accumulation))

    for number, part in enumerate(found):
        step, micro = divmod(number, accumulation)
        start = position + step * 240 + (micro * world + share.rank) * width
        alone = order.slice(start, width)
        assert (part.epochs.tolist(), part.indices.tolist()) == (
            alone.epochs.tolist(),
            alone.indices.tolist(),
        )


def test_the_order_is_found_for_thousands_of_samples_at_once(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(
        "gpu_fleet.data.order.permute", lambda places, *_: asked.append(len(places)) or places
    )

    taken = list(islice(training_slices(SampleOrder(10**6, seed=1), RankShare(0, 1, 32, 2), position=0), 512))

    assert sum(len(part.indices) for part in taken) == 8192
    assert asked == [4096, 4096]


def test_the_chance_of_a_sample_is_the_same_whatever_was_read_before():
    reader = Reader(cast("Any", None), seed=2**62 + 3)
    reader.chance(0, 1).integers(0, 5, 7)

    found = reader.chance(4, 9).random(3).tolist()

    fresh = np.random.Generator(np.random.Philox(key=2**62 + 3, counter=[0, 0, 4, 9]))
    assert found == fresh.random(3).tolist()
