"""Reads and writes past the page cache, for instances without fio.

A sequential figure is that of the device or the network. A random one may be that of Python, so it is a lower
bound.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

BLOCK, PAGE = 4 << 20, 4096
THREADS = 16
AT_ONCE = 64  # places that are drawn at once
Operation = Callable[[int, mmap.mmap, int], int]  # file descriptor, buffer, place -> bytes


def measured(file: Path, size: int, seconds: float) -> dict[str, float]:
    """Return `write` and `read` in bytes/s, `random_write` and `random_read` in operations/s.

    Raises OSError, also for a file system without O_DIRECT: a figure of the cache would mean nothing.
    """
    try:
        written, speed = _written(file, size, seconds)
        return {
            "write": speed,
            "read": _read(file, written, seconds),
            "random_write": _random(file, written, seconds, os.O_WRONLY, _write_at),
            "random_read": _random(file, written, seconds, os.O_RDONLY, _read_at),
        }
    finally:
        file.unlink(missing_ok=True)


def _buffer(size: int) -> mmap.mmap:
    """Return memory that begins at a page, as O_DIRECT needs it, filled with what no disk compresses."""
    memory = mmap.mmap(-1, size)
    memory.write(os.urandom(size))
    return memory


def _opened(file: Path, flags: int) -> int:
    return os.open(file, flags | os.O_DIRECT, 0o600)


def _written(file: Path, size: int, seconds: float) -> tuple[int, float]:
    """Write up to `size` bytes within the time; return the bytes and their speed."""
    memory, descriptor = _buffer(BLOCK), _opened(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        begin, written = time.perf_counter(), 0
        while written < size and (written == 0 or time.perf_counter() - begin < seconds):
            written += os.write(descriptor, memory)
        os.fsync(descriptor)
        return written, written / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def _read(file: Path, size: int, seconds: float) -> float:
    memory, descriptor = _buffer(BLOCK), _opened(file, os.O_RDONLY)
    try:
        begin, read = time.perf_counter(), 0
        while read == 0 or time.perf_counter() - begin < seconds:
            read += os.preadv(descriptor, [memory], read % size)
        return read / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def _read_at(descriptor: int, memory: mmap.mmap, place: int) -> int:
    return os.preadv(descriptor, [memory], place)


def _write_at(descriptor: int, memory: mmap.mmap, place: int) -> int:
    return os.pwritev(descriptor, [memory], place)


def _random(file: Path, size: int, seconds: float, flags: int, operation: Operation) -> float:
    """Return the operations of one page per second that several threads do at random places."""
    descriptor = _opened(file, flags)
    counts, failures = [0] * THREADS, list[OSError]()
    until = time.perf_counter() + seconds

    def work(number: int) -> None:
        chance, memory = np.random.default_rng(number), _buffer(PAGE)
        try:
            while counts[number] == 0 or time.perf_counter() < until:
                for page in chance.integers(0, size // PAGE, AT_ONCE).tolist():
                    operation(descriptor, memory, page * PAGE)
                counts[number] += AT_ONCE
        except OSError as error:
            failures.append(error)

    try:
        begin = time.perf_counter()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        if flags == os.O_WRONLY:
            os.fsync(descriptor)
        return sum(counts) / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)
