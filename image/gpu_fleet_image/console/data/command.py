"""``gpu-fleet data``: put, get and list the files that a stack's users share."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from gpu_fleet_image.console.data.bucket import (
    SHARED,
    ByteCounter,
    DataBucket,
    FileFate,
    FileOutcome,
    open_bucket,
    prefix_of,
    shown,
)
from gpu_fleet_image.console.data.download import Downloader, Item
from gpu_fleet_image.console.data.upload import DataUploader, LocalFile, cache_folder
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.listing import Column, Listing, console
from gpu_fleet_image.core.options import where_options
from gpu_fleet_image.core.place import Asked, place_of
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.shared_options import CSV, JSON, form_option, note
from gpu_fleet_image.core.times import format_time

MOST_NAMED = 10
EXIT_FAILED = 1
PIPE_WIDTH = 200
COLUMNS = {"": ("name", "files", "bytes", "owner", "at", "uri"), "files": ("name", "bytes", "at")}


@click.command(
    epilog="\b\nExample:\n  gpu-fleet data put data/digits digits --stack aws-dev",
)
@click.argument("path", metavar="PATH")
@click.argument("name", metavar="NAME")
@click.option("--replace", is_flag=True, help="Replace files of NAME that differ; old versions stay a while.")
@where_options
def put(path: str, name: str, asked: Asked, *, replace: bool) -> None:
    """Upload a file or folder to shared/NAME/ of the stack's data bucket, where all its users read it.

    Files that are there already are left out, so the same command continues an upload that was cut short.
    Repositories, virtual environments, caches and files that look like secrets stay here, unless PATH is the
    file itself. A file of NAME with other content stays too, without --replace. Exit code 1 if a file is not
    there in the end.
    """
    prefix = prefix_of(name)
    sources, left_out = sources_of(path)
    if left_out:
        note(f"left out: {some(left_out)} (named as PATH, a file is uploaded nevertheless)")
    if not sources:
        raise ConfigurationError(f"PATH {path!r}: holds no file to upload")
    bucket = open_bucket(place_of(asked), as_owner=True)
    with progress(sum(source.size for source in sources)) as counter, kept():
        done = DataUploader(bucket, prefix, counter, cache_folder(), replace=replace).put(sources)
    finish(done, f"{bucket.uri}/{prefix}", "uploaded")


@click.command(epilog="\b\nExample:\n  gpu-fleet data get digits data/digits --stack aws-dev")
@click.argument("name", metavar="NAME")
@click.argument(
    "folder", metavar="[FOLDER]", required=False, type=click.Path(path_type=Path, file_okay=False)
)
@click.option("--replace", is_flag=True, help="Write over files of FOLDER that differ.")
@where_options
def get(name: str, folder: Path | None, asked: Asked, *, replace: bool) -> None:
    """Download shared/NAME/ of the stack's data bucket into FOLDER, by default one called NAME.

    Each file is verified by the SHA-256 of its upload. Files that are here already are left out, so the same
    command continues a download that was cut short. Exit code 1 if a file is not here in the end.
    """
    prefix = prefix_of(name)
    bucket = open_bucket(place_of(asked))
    items = [
        Item(str(each["Key"]), str(each["Key"]).removeprefix(prefix), int(each["Size"]), str(each["ETag"]))
        for each in bucket.listed(prefix)
        if not str(each["Key"]).endswith("/")
    ]
    if not items:
        raise ConfigurationError(f"NAME {name!r}: {bucket.uri}/{prefix} holds no file; gpu-fleet data list")
    target = folder or Path(name)
    target.mkdir(parents=True, exist_ok=True)
    with progress(sum(item.size for item in items)) as counter, kept():
        done = Downloader(bucket, target, counter, replace=replace).get(items)
    finish(done, str(target), "downloaded")


@click.command("list", epilog="\b\nExample:\n  gpu-fleet data list --stack aws-dev")
@click.argument("name", metavar="[NAME]", required=False)
@form_option
@where_options
def list_data(name: str | None, form: str, asked: Asked) -> None:
    """List what the stack's users share: files, size, owner and date; with NAME its files."""
    prefix = prefix_of(name) if name else SHARED
    bucket = open_bucket(place_of(asked))
    columns = COLUMNS["files" if name else ""]
    rows = files_of(bucket, prefix) if name else data_sets(bucket)
    if name and not rows:
        raise ConfigurationError(f"NAME {name!r}: {bucket.uri}/{prefix} holds no file; gpu-fleet data list")
    if form == JSON:
        click.echo(json.dumps({"files" if name else "data": rows}, indent=1))
    elif form == CSV:
        click.echo(csv_text(columns, rows), nl=False)
    else:
        numbers = {"files", "bytes"}
        listing = Listing(tuple(Column(each, "right" if each in numbers else "left") for each in columns))
        for row in rows:
            cells = [f"{row[each]:,}" if each in numbers else shown(str(row[each] or "")) for each in columns]
            listing.add_row(*cells)
        console(PIPE_WIDTH).print(listing)


def sources_of(path: str) -> tuple[list[LocalFile], list[str]]:
    """Return the files of a path that are uploaded, and the names of those that are not.

    The trainer's own process lists them by the rules of ``submit --include``.

    Raises:
        ConfigurationError: the trainer's message about what is wrong.
    """
    command = [sys.executable, "-m", "gpu_fleet", "contents", "--", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = done.stderr.strip().removeprefix("error: ")
        raise ConfigurationError(problem or "the trainer gave no reason")
    *listed, last = (json.loads(line) for line in done.stdout.splitlines())
    root = Path(path)
    is_file = root.is_file()
    sources = [
        LocalFile(each["name"], root if is_file else root / each["name"], each["bytes"]) for each in listed
    ]
    return sources, [str(each) for each in last["left_out"]]


@dataclass
class _DataSet:
    """Sums of one data set, and its newest object."""

    files: int = 0
    bytes: int = 0
    newest: dict[str, Any] | None = None

    def add(self, item: dict[str, Any]) -> None:
        self.files += 1
        self.bytes += int(item["Size"])
        if self.newest is None or item["LastModified"] > self.newest["LastModified"]:
            self.newest = item


def data_sets(bucket: DataBucket) -> list[dict[str, Any]]:
    """Return a row for each data set; its owner uploaded the newest file. Raises CloudError."""
    sets: dict[str, _DataSet] = {}
    for item in bucket.listed(SHARED):
        name, _, rest = str(item["Key"]).removeprefix(SHARED).partition("/")
        if rest:
            sets.setdefault(name, _DataSet()).add(item)
    rows = []
    for name, there in sorted(sets.items()):
        newest = there.newest or {}
        stored = bucket.stored(str(newest["Key"]))
        rows.append(
            {
                "name": name,
                "files": there.files,
                "bytes": there.bytes,
                "owner": stored.owner or None if stored else None,
                "at": _time(newest["LastModified"]),
                "uri": f"{bucket.uri}/{SHARED}{name}",
            }
        )
    return rows


def files_of(bucket: DataBucket, prefix: str) -> list[dict[str, Any]]:
    """Return a row for each file of a data set. Raises CloudError."""
    return [
        {
            "name": str(item["Key"]).removeprefix(prefix),
            "bytes": int(item["Size"]),
            "at": _time(item["LastModified"]),
        }
        for item in bucket.listed(prefix)
        if not str(item["Key"]).endswith("/")
    ]


def _time(at: datetime) -> str:
    return format_time(at)


@contextmanager
def progress(total: int) -> Iterator[ByteCounter]:
    """Show the bytes of a transfer on a terminal's standard error; yield what counts them."""
    screen = Console(stderr=True)
    parts = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*parts, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield ByteCounter(lambda size: bar.advance(task, size))


@contextmanager
def kept() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        note("what was moved stays; the same command continues")
        raise


def finish(done: Sequence[FileOutcome], where: str, moved: str) -> None:
    """Print the result of a transfer; end with 1 if a file is missing."""
    count = {fate: [each for each in done if each.fate is fate] for fate in FileFate}
    size = sum(each.size for each in count[FileFate.MOVED])
    moves = f"{counted(len(count[FileFate.MOVED]), 'file')} {moved}, {size:,} bytes"
    click.echo(f"{where}: {moves}; {len(count[FileFate.THERE])} were there")
    if unknown := [each.name for each in done if not each.is_verified]:
        note(f"verified by size alone, since another program uploaded them: {some(unknown)}")
    if differing := [each.name for each in count[FileFate.DIFFERS]]:
        click.echo(f"error: other content is there, and stays without --replace: {some(differing)}", err=True)
    for each in count[FileFate.FAILED][:MOST_NAMED]:
        click.echo(f"error: {shown(each.name)}: {each.why}", err=True)
    if len(count[FileFate.FAILED]) > MOST_NAMED:
        click.echo(
            f"error: {counted(len(count[FileFate.FAILED]) - MOST_NAMED, 'more file')} failed", err=True
        )
    if count[FileFate.DIFFERS] or count[FileFate.FAILED]:
        sys.exit(EXIT_FAILED)


def some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others. Pure."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(map(shown, names[:MOST_NAMED])) + more
