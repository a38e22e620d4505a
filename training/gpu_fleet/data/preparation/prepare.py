"""`prepare`: turns raw files into data sets that `train start` reads, and packaged data into examples."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from gpu_fleet.core.errors import DataError, counted
from gpu_fleet.core.lazy_groups import LazyGroup
from gpu_fleet.data.census import Census, shown
from gpu_fleet.data.dataset import Description, write_description

VALIDATION_EVERY = 5  # every fifth picture is held out: 360 of 1,797
GREY_LEVELS = 16  # greatest value in scikit-learn's digits

prepare = LazyGroup(
    "prepare",
    help="Turn raw files into a data set in OUT_DIR: train/, val/ and dataset.json.",
    epilog="\b\nExample:\n  gpu-fleet train prepare digits data/digits",
    table={
        "digits": "gpu_fleet.data.preparation.prepare:digits",
        "index": "gpu_fleet.data.preparation.shards:index",
        "shards": "gpu_fleet.data.preparation.shards:shards",
        "text": "gpu_fleet.data.preparation.text:text",
        "tokens": "gpu_fleet.data.preparation.tokens:tokens",
    },
)


@click.command(epilog="\b\nExample:\n  gpu-fleet train prepare digits data/digits")
@click.argument("out_dir", type=click.Path(path_type=Path, file_okay=False))
def digits(out_dir: Path) -> None:
    """Write scikit-learn's handwritten digits (1,797 pictures of 8 x 8) as an image folder."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # noqa: PLC0415 - slow to load
    from sklearn.neighbors import KNeighborsClassifier  # type: ignore[import-untyped]  # noqa: PLC0415 - as above

    bunch = load_digits()
    pictures, classes = np.asarray(bunch.images), np.asarray(bunch.target)
    held_out = np.arange(len(classes)) % VALIDATION_EVERY == 0
    make_folder(out_dir)
    with progress("digits", len(classes)) as advance:
        for number in range(len(classes)):
            split = "val" if held_out[number] else "train"
            folder = out_dir / split / str(classes[number])
            folder.mkdir(parents=True, exist_ok=True)
            pixels = (pictures[number] * (255 / GREY_LEVELS)).round().astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:04d}.png")
            advance()
    flat = pictures.reshape(len(pictures), -1)
    numbers = np.unique(classes)
    centroids = [flat[~held_out & (classes == number)].mean(axis=0) for number in numbers]
    model = KNeighborsClassifier(n_neighbors=1).fit(centroids, numbers)
    baseline = float(model.score(flat[held_out], classes[held_out]))
    names = tuple(map(str, numbers))
    write_description(
        out_dir, Description("images", names, baseline_name="nearest centroid accuracy", baseline=baseline)
    )
    click.echo(
        f"{(~held_out).sum()} pictures in {out_dir}/train, {held_out.sum()} in {out_dir}/val; "
        f"nearest centroid accuracy {baseline:.4f}"
    )


def make_folder(out_dir: Path) -> None:
    """Create the folder of a new data set; raises DataError if it is not empty or cannot be written."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        if any(out_dir.iterdir()):
            raise DataError(f"OUT_DIR = {str(out_dir)!r}: is not empty; choose a new folder")
    except OSError as error:
        raise DataError(f"OUT_DIR = {str(out_dir)!r}: cannot be written: {error.strerror}") from error


class Skipped:
    """Counter of the samples that one `prepare` command skips, and census of other files."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0
        self.census = Census()

    def add(self, defect: str) -> None:
        """Count and name a skipped sample; raises DataError above the limit."""
        self.count += 1
        defect = shown(defect)
        click.echo(f"skipped {self.count} of at most {self._limit}: {defect}", err=True)
        if self.count > self._limit:
            raise DataError(
                f"{counted(self.count, 'sample')} cannot be read, --corrupt-limit allows {self._limit}; "
                f"last: {defect}"
            )

    def say(self, noun: str) -> None:
        """Print the number of skipped samples, such as ``picture``, and the census."""
        click.echo(f"{counted(self.count, noun)} skipped; left out: {self.census}")


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error, and yield a function that advances it by one of `total`.

    Rich's `track` is a generator: the garbage collector may close it inside its own thread, where it hangs.
    """
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


corrupt_limit_option = click.option(
    "--corrupt-limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Samples that may be left out because they cannot be read.",
)
