"""Shards in a bucket: ranged reads fetch the members of a batch, CONNECTIONS at once, with retries.

S3 answers a small read in 100 to 200 ms and takes 5,500 a second for a prefix:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpu_fleet.core import outcome
from gpu_fleet.core.errors import CheckpointError, DataError, SilentSourceError, StoreError
from gpu_fleet.data.census import Census
from gpu_fleet.data.class_folders import DESCRIPTION
from gpu_fleet.data.dataset import Description, parsed
from gpu_fleet.storage.object_store import CONNECTIONS, PATIENCE_S, ObjectStore, patiently

INDEX = "index.npy"
# One read fetches members that are near each other: the bytes between cost less than another request.
GAP_BYTES, LONGEST_READ_BYTES = 1 << 16, 1 << 22
T = TypeVar("T")


class BytesInShard(NamedTuple):
    shard: str
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class BucketSource:
    """Bucket of a data set; every request is retried for `retry_s` seconds."""

    def __init__(
        self, uri: str, endpoint: str = "", retry_s: float = PATIENCE_S, key: str = "data.path"
    ) -> None:
        self.uri = uri.rstrip("/")
        self._given, self._endpoint, self._retry_s, self._key = uri, endpoint, retry_s, key
        # with the id of its process: a fork must not share connections
        self._store: tuple[int, ObjectStore] | None = None

    def ask(self, action: Callable[[ObjectStore], T], *, refused: bool = False) -> T:
        """Run a request as `patiently` does; raises SilentSourceError without an answer, or DataError."""
        try:
            store = self._here()
            known = refused or outcome.restarted()  # then the ranks have read from it before
            return patiently(lambda: action(store), self._retry_s, refused=known)
        except StoreError as error:
            raise (SilentSourceError if error.passing else DataError)(str(error)) from error
        except CheckpointError as error:
            raise DataError(str(error)) from error

    def description(self) -> Description:
        content = self.ask(lambda store: store.get(DESCRIPTION))
        if content is None:
            raise DataError(f"{self.uri}/{DESCRIPTION}: is missing; `prepare index {self.uri}` writes it")
        return parsed(content, f"{self.uri}/{DESCRIPTION}")

    def _here(self) -> ObjectStore:
        if self._store is None or self._store[0] != os.getpid():
            self._store = os.getpid(), ObjectStore(self._given, self._endpoint, key=self._key)
        return self._store[1]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_store": None}


class BucketFolder:
    """One split of shards in a bucket; see data.shards.DiskFolder."""

    def __init__(self, source: BucketSource, split: str) -> None:
        self._source, self._split = source, split
        self._fetched: dict[BytesInShard, bytes] = {}  # fetched by the last `expect`

    @property
    def label(self) -> str:
        return f"{self._source.uri}/{self._split}"

    def files(self, census: Census) -> dict[str, int]:
        del census  # a bucket has no links and no devices
        return dict(sorted(self._source.ask(lambda store: store.sizes(self._split)).items()))

    def index(self) -> bytes:
        content = self._source.ask(lambda store: store.get(f"{self._split}/{INDEX}"))
        if content is None:
            raise DataError(f"{self.label}/{INDEX}: is missing; `prepare index {self._source.uri}` writes it")
        return content

    def write_index(self, content: bytes) -> None:
        self._source.ask(lambda store: store.put(f"{self._split}/{INDEX}", content))

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            self._source.ask(lambda store: store.get(f"{self._split}/{name}", file))
            try:
                yield file
            except DataError as error:
                raise DataError(str(error).replace(folder, self.label)) from error

    def expect(self, places: Iterable[BytesInShard]) -> None:
        reads = list(merged(places))
        with ThreadPoolExecutor(min(CONNECTIONS, max(1, len(reads)))) as pool:
            fetched = pool.map(self._fetch, reads)
        self._fetched = {place: content for contents in fetched for place, content in contents.items()}

    def _fetch(self, places: list[BytesInShard]) -> dict[BytesInShard, bytes]:
        first, size = places[0], max(place.end for place in places) - places[0].start
        content = self._part(BytesInShard(first.shard, first.start, size))
        return {place: content[place.start - first.start :][: place.size] for place in places}

    def read(self, place: BytesInShard) -> bytes:
        content = self._fetched.get(place)
        return self._part(place) if content is None else content

    def _part(self, place: BytesInShard) -> bytes:
        if not place.size:
            return b""
        name = f"{self._split}/{place.shard}"
        return self._source.ask(  # the index beside it was read, so only the credentials can have expired
            lambda store: store.part(name, place.start, place.size), refused=True
        )


def merged(places: Iterable[BytesInShard]) -> Iterator[list[BytesInShard]]:
    """Yield all places, once each, in groups; one read from the start of the first place covers a group."""
    group: list[BytesInShard] = []
    for place in sorted(set(places)):
        if group and not (
            place.shard == group[0].shard
            and place.start <= max(earlier.end for earlier in group) + GAP_BYTES
            and place.end <= group[0].start + LONGEST_READ_BYTES
        ):
            yield group
            group = []
        group.append(place)
    if group:
        yield group
