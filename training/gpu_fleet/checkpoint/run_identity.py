"""Identity of a run: everything that changes its result. A run resumes from no other run's checkpoint."""

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from gpu_fleet.core import config, user_code
from gpu_fleet.core.errors import DataError, IdentityError, suggestion
from gpu_fleet.data.dataset import Dataset, Description
from gpu_fleet.data.own_data import ENDLESS, OwnData

Identity = dict[str, str]  # key, as `section.key` -> its value as JSON

# Keys of a configuration that change no weight, or only its rounding -> the reason.
HARMLESS = {
    "run.directory": "where the files go",
    "run.owner": "whose run it is; the place of its checkpoints follows from it",
    "run.log_every_steps": "what is written down",
    "run.evaluate_every_steps": "held-out data are looked at, not learned from",
    "data.path": "where the samples lie; what they are is in data.content",
    "data.workers": "who reads; the order is the same",
    "data.prefetch": "how far ahead",
    "data.corrupt_limit": "when to give up",
    "data.endpoint": "where the samples lie",
    "data.retry_s": "when to give up",
    "precision.compile": "the same numbers up to rounding",
    "precision.channels_last": "the same numbers up to rounding",
    "precision.cudnn_benchmark": "the same numbers up to rounding",
    "precision.activation_checkpointing": "computed twice instead of kept",
    "parallel.strategy": "the same numbers up to rounding, on any number of ranks",
    "parallel.tensor": "see parallel.strategy",
    "parallel.pipeline": "see parallel.strategy",
    "parallel.static_graph": "the same numbers up to rounding",
    "parallel.timeout_s": "how long to wait",
    "checkpoint.*": "when and where to save",
    "interrupt.*": "when to stop",
    "metrics.*": "what is written down",
}
# Schedules that do not depend on the length of the run: a longer run begins with the same steps as a shorter
# one.
UNBOUNDED_SCHEDULES = ("constant", "step")
CONFIG, CODE = "run.", "code."  # prefixes of the keys of a user's own program
NONE = "(none)"  # value of a configuration key that only the checkpoint has, or only the run
LENGTH = ("run.epochs", "run.steps")
ANOTHER = "another at each reading"  # content of data that draw from a generator of their own
SHAPE = "data*.shape"  # a key of such data only
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of a function or an object
log = logging.getLogger(__name__)
CONTENT = "data*.content"
LEVELS = "-"  # between the digests of a content, each of four times as many samples as the one before
READINGS = 2  # of each sample: they show whether it is drawn anew
LOOK_S, LOOK_AT_ALL_S = 20.0, 3.0  # longest times to read up to DRAWN samples, and to read more
DRAWN, MOST_LOOKED_AT = 256, 1 << 20  # 256 samples miss a change of 5 % in 2 of 1,000,000 cases
LOOKED_AT = 512  # samples in the fingerprint, evenly spaced: a second on a slow file system


def of_run(
    settings: config.Config,
    description: Description,
    training: Dataset | OwnData,
    code: Identity,
    looked_at: Mapping[str, Any] | None = None,
) -> Identity:
    """Return the identity of a run; `looked_at` is the result of of_data, else of_data is called here."""
    identity = of_configuration(settings.model_dump(mode="json")) | code
    identity["data.description"] = json.dumps([description.kind, description.classes, description.vocabulary])
    return identity | {
        f"data.{key}": json.dumps(value) for key, value in (looked_at or of_data(training)).items()
    }


def of_configuration(table: Mapping[str, Any]) -> Identity:
    """Return the part of the identity from a configuration, given as a nested table."""
    flat = dict(flattened(table))
    bounded = flat.get("schedule.name") not in {json.dumps(name) for name in UNBOUNDED_SCHEDULES}
    return {
        key: value
        for key, value in flat.items()
        if not any(fnmatch(key, harmless) for harmless in HARMLESS) and (bounded or key not in LENGTH)
    }


def flattened(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for section, keys in table.items():
        for key, value in keys.items():
            yield f"{section}.{key}", json.dumps(value, sort_keys=True, default=_text)


def _text(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(str(_text(item)) for item in value)
    return ADDRESS.sub("", str(value))


def of_script(settings: Mapping[str, Any], directory: Path) -> Identity:
    """Return the part of the identity from a user's own program and its configuration."""
    table = dict(flattened({CONFIG.rstrip("."): settings}))
    return table | user_code.identity(user_code.files(directory, with_main=True))


def of_data(samples: Dataset | OwnData, *, says: bool = True) -> dict[str, Any]:
    """Return the number of `samples`, and their content; `says` allows a warning."""
    return {"samples": len(samples), **_content(samples, says=says)}


def _content(samples: Dataset | OwnData, *, says: bool) -> dict[str, Any]:
    """Return the `content`: digests of growing sets of samples, of all if reading a user's own takes seconds.

    If a second reading differs, the result has their `shape` instead.
    """
    if not isinstance(samples, OwnData):
        return {"content": fingerprint(samples)}
    if not samples.of_user:
        return {"content": _digest([samples.outline()])}
    digest, digests, known, pace_s = hashlib.sha256(), [], 0, 0.0
    for count in _depths(samples):
        if pace_s * (count - known) > (LOOK_S if count <= DRAWN else LOOK_AT_ALL_S):
            break
        begun = time.monotonic()
        readings = [samples.looked(known, count) for _ in range(READINGS)]
        if readings[0] != readings[-1]:
            return _drawn(samples, readings, says=says)
        if not readings[0]:  # a stream has ended
            break
        for content, _ in readings[0]:
            digest.update(content)
        digests.append(digest.hexdigest()[:16])
        pace_s, known = (time.monotonic() - begun) / len(readings[0]), known + len(readings[0])
    if says and known < len(samples):
        length = "no-length" if len(samples) == ENDLESS else len(samples)
        log.info("event=data-compared samples=%d of=%s data=%r", known, length, samples.label)
    return {"content": LEVELS.join(digests)}


def _depths(samples: OwnData) -> Iterator[int]:
    """Yield growing numbers of samples to compare; the last is the largest allowed."""
    count, most = samples.looked_at, min(len(samples), MOST_LOOKED_AT)
    while count < most:
        yield count
        count *= 4
    yield most


def _drawn(
    samples: OwnData, readings: Sequence[Sequence[tuple[bytes, str]]], *, says: bool
) -> dict[str, Any]:
    if says:
        log.warning(
            "not exact: %s draws from a generator of its own: a sample that is read twice is another one. A "
            "run that is resumed ends with other bits than an undisturbed one, and other data of this length "
            "and shape would not be noticed; draw from torch, numpy.random or random, whose generators "
            "are set by seed, epoch and index",
            samples.label,
        )
    shapes = [[shape for _, shape in reading] for reading in readings]
    same_shapes = {"shape": sorted(set(shapes[0]))} if shapes[0] == shapes[-1] else {}
    return {"content": ANOTHER, **same_shapes}


def check_alike(of_ranks: Sequence[Iterable[Mapping[str, Any]]], label: str) -> None:
    """Raise DataError on all ranks if one has other data than rank 0; it may have more or fewer sets."""
    known = [
        {
            json.dumps({**data, "content": data["content"].partition(LEVELS)[0]}, sort_keys=True)
            for data in given
            if data["content"] != ANOTHER
        }
        for given in of_ranks
    ]
    for rank, mine in enumerate(known):
        if not (mine <= known[0] or known[0] <= mine):
            error = DataError(
                f"{label}: rank {rank} reads other samples than rank 0, so some of both would be left out: "
                "give every rank all samples in the same order, and it gets its share here; remove code that "
                "shares them out before (RANK, torch.distributed.get_rank, split_dataset_by_node, "
                "split_by_node, DistributedSampler), and sort the files of folders"
            )
            error.shared = True
            raise error


def fingerprint(dataset: Dataset) -> str:
    """Return hex digits that distinguish data sets of equal length, without reading all samples."""
    places = sorted({int(place) for place in np.linspace(0, len(dataset) - 1, LOOKED_AT)})
    return _digest([dataset.outline(), *map(dataset.fingerprint, places)])


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()[:16]


def differences(saved: Identity, now: Identity, allowed: Iterable[str] = ()) -> list[tuple[str, str, str]]:
    """Return (key, saved, now) for all keys that both have and that differ, except those in `allowed`."""
    for key in allowed:
        if key not in now and key not in LENGTH and not fnmatch(key, SHAPE):
            raise IdentityError(f"checkpoint.allow: {key!r} decides nothing{suggestion(key, now)}")
    compared = sorted((saved.keys() & now.keys()).difference(allowed))
    return [(key, saved[key], now[key]) for key in compared if not _is_same(key, saved[key], now[key])]


def _is_same(key: str, saved: str, now: str) -> bool:
    """Return whether two values of a key are equal; contents are compared on the samples that both cover."""
    if not fnmatch(key, CONTENT):
        return saved == now
    levels = zip(*(text.strip('"').split(LEVELS) for text in (saved, now)), strict=False)
    return all(ours == theirs for ours, theirs in levels)


def check(
    saved: Identity, now: Identity, allowed: Iterable[str], step: int, where: str, *, how: str = ""
) -> None:
    """Raise IdentityError with a table of the differences between a checkpoint and this run.

    `how` is the code by which a user allows the {keys}; empty: the flags of `train start`.
    """
    changed = differences(saved, now, allowed)
    if not changed:
        return
    width = max(len(key) for key, _, _ in changed)
    rows = "\n".join(f"  {key:{width}}  {before} -> {after}" for key, before, after in changed)
    begin = f"checkpoint of step {step} in {where} is of another run (saved -> now):\n{rows}\n"
    if how:
        quoted = ", ".join(repr(key) for key, _, _ in changed)
        raise IdentityError(
            f"{begin}to go on all the same: {how.format(keys=quoted)}; to begin anew: another directory"
        )
    flags = " ".join(f"--allow {key}" for key, _, _ in changed)
    raise IdentityError(
        f"{begin}to go on with it all the same: {flags}\n"
        "to begin a new run from its weights: --branch NAME; to begin anew: another run.directory"
    )


class ScriptIdentity:
    """Identity of a user's own program, which becomes known in parts; each is compared when it is known."""

    def __init__(self, known: Identity, allow: Sequence[str], how: str, later: tuple[str, ...]) -> None:
        """Take the part that is `known` first; `add` gives the keys that begin with `later`."""
        self.known = known
        self._allow, self._how, self._later = allow, how, later
        self._saved: Identity = {}
        self._at: tuple[int, str] = 0, ""  # step and folder of the checkpoint

    def compare_with(self, saved: Identity, step: int, where: str) -> None:
        self._saved, self._at = saved, (step, where)
        self._compare(saved, self.known, [key for key in self._allow if not key.startswith(self._later)])

    def add(self, part: Identity) -> None:
        self.known = self.known | part
        sections = tuple({f"{key.partition('.')[0]}." for key in part})
        saved = {key: value for key, value in self._saved.items() if key.startswith(sections)}
        self._compare(saved, part, [key for key in self._allow if key.startswith(sections)])

    def _compare(self, saved: Identity, now: Identity, allowed: Iterable[str]) -> None:
        """Run `check`; a configuration key that is new or gone is a difference too."""
        if self._saved:
            gone, new = ({key: NONE for key in table if key.startswith(CONFIG)} for table in (saved, now))
            check(new | saved, gone | now, allowed, *self._at, how=self._how)
