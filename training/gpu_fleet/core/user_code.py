"""A user's own code by name: "my_model.py:build" or "package.module:Class", checked before it is called.

A name is searched in the folder in which the run is started, then in `run.directory`/code, the copy of every
file that a run has used; each checkpoint has the same files as code.zip.
"""

import importlib
import importlib.util
import inspect
import io
import json
import os
import sys
import sysconfig
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, PassingCodeError, UserCodeError, a_kind, suggestion
from gpu_fleet.core.files import may_pass
from gpu_fleet.core.reachable import reachable

FOLDER = "code"  # in the run directory
ARCHIVE = "code.zip"  # in a checkpoint
TRACEBACK = "GPU_FLEET_TRACEBACK"
# The positional arguments, and the signature, of each kind of code; errors and the README show the latter.
EXPECTED = {
    "model.name": (0, "NAME(**model.options) -> torch.nn.Module"),
    "data.name": (1, 'NAME(split, **data.options) -> data set, or None; split is "train" or "val"'),
    "data.collate": (1, "NAME(samples) -> batch; samples is a list"),
    "loss.name": (2, "NAME(model, batch, **loss.options) -> Tensor (), the mean over the batch"),
    "loss.mean_over": (1, "NAME(batch) -> int or Tensor (): number of items over which the loss is the mean"),
    "metric.name": (
        2,
        "NAME(model, batch, **metric.options) -> dict of Tensor (), each the mean over the batch, or of "
        "pairs (sum, count)",
    ),
    "optimizer.name": (1, "NAME(parameters, lr, **optimizer.options) -> torch.optim.Optimizer"),
}
INSTALLED = (
    *sysconfig.get_paths().values(),
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[2] / "gpu_fleet_jobs"),
    str(Path(torch.__file__).parents[1]),
)
NOT_OF_USERS = {Path(place).resolve() for place in INSTALLED}
PACKAGES = {"site-packages", "dist-packages"}
INDEX_ON_GPU = "device-side assert triggered"
PEER_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Gloo connectFullMesh failed",
)
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the format's earliest time, for all files: the content alone counts


@dataclass(frozen=True)
class Own:
    """One function or class of a user, with its options."""

    key: str
    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it; raises UserCodeError naming key, file and line if it fails."""
        with explained(f"{self.key} = {self.name!r}"):
            return self.function(*arguments, **named, **self.options)

    def wrong(self, problem: str) -> UserCodeError:
        """Return the error about what it gave; a rank that raises it alone says so."""
        return UserCodeError(f"{self.key} = {self.name!r}: {problem}; expected: {EXPECTED[self.key][1]}")


@dataclass(frozen=True)
class Parts:
    """Parts of a run that are a user's own; None for the trainer's."""

    model: Own | None = None
    data: Own | None = None
    collate: Own | None = None
    loss: Own | None = None
    mean_over: Own | None = None
    metric: Own | None = None
    optimizer: Own | None = None

    @property
    def any(self) -> bool:
        return any(part is not None for part in vars(self).values())


def parts(settings: config.Config) -> Parts:
    """Load all code that a configuration names; raises ConfigError or UserCodeError."""
    directory = settings.run.directory

    def part(key: str, name: str, options: Mapping[str, Any] | None = None) -> Own | None:
        return load(key, name, options, directory) if name else None

    model, optimizer, mean_over = settings.model, settings.optimizer, settings.loss.mean_over
    return Parts(
        model=part("model.name", model.name, model.options) if is_own(model.name) else None,
        data=part("data.name", settings.data.name, settings.data.options),
        collate=part("data.collate", settings.data.collate),
        loss=part("loss.name", settings.loss.name, settings.loss.options),
        mean_over=part("loss.mean_over", mean_over) if is_own(mean_over) else None,
        metric=part("metric.name", settings.metric.name, settings.metric.options),
        optimizer=part("optimizer.name", optimizer.name, optimizer.options)
        if is_own(optimizer.name)
        else None,
    )


def is_own(name: str) -> bool:
    return ":" in name


def load(key: str, name: str, options: Mapping[str, Any] | None = None, directory: str = "") -> Own:
    """Load the function or class `name`, to be called as EXPECTED[key] says; raises ConfigError."""
    place, _, attribute = name.partition(":")
    if not place or not attribute:
        raise ConfigError(f"{key} = {name!r}: write FILE.py:NAME or package.module:NAME")
    of = _of_file if place.endswith(".py") else _of_package
    with explained(f"{key} = {name!r}"):
        module = of(key, name, place, Path(directory) / FOLDER)
    function = getattr(module, attribute, None)
    if function is None:
        known = [other for other, value in vars(module).items() if callable(value) and other[0] != "_"]
        raise ConfigError(f"{key} = {name!r}: {place} has no {attribute}{suggestion(attribute, known)}")
    if not callable(function):
        raise ConfigError(f"{key} = {name!r}: is {a_kind(function)}, which cannot be called")
    own = Own(key, name, function, options or {})
    _check_signature(own)
    return own


def _of_file(key: str, name: str, place: str, kept: Path) -> ModuleType:
    path = next((path for path in (Path(place), kept / place) if path.is_file()), None)
    if path is None:
        raise ConfigError(f"{key} = {name!r}: {place} is no file below {Path.cwd()}")
    path = path.resolve()
    for module in list(sys.modules.values()):  # the same file for model and loss is one module
        if getattr(module, "__file__", None) == str(path):
            return module
    _importable(path.parent, kept)
    title = path.stem if path.stem not in sys.modules else f"own_{path.stem}"
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[title]
        raise
    return module


def _of_package(key: str, name: str, place: str, kept: Path) -> ModuleType:
    _importable(Path.cwd(), kept)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the user's module needs a module that is missing
        raise ConfigError(
            f"{key} = {name!r}: there is no module {error.name}, neither below {Path.cwd()} nor installed"
        ) from error


def _importable(folder: Path, kept: Path) -> None:
    """Put a folder in front of sys.path, and behind it that of kept files, by the names of their modules."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if kept.is_dir() and str(kept.resolve()) not in sys.path:
        sys.path.append(str(kept.resolve()))


def _check_signature(own: Own) -> None:
    try:
        signature = inspect.signature(own.function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return
    named = {"lr": 0.0} if own.key == "optimizer.name" else {}
    try:
        signature.bind(*[None] * EXPECTED[own.key][0], **named, **own.options)
    except TypeError as error:
        raise own.wrong(f"its signature is {signature}: {error}") from error


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an exception of a user's code into an UserCodeError with file and line.

    Errors of the device's memory, of a peer and ConfigError pass. GPU_FLEET_TRACEBACK=1 shows the traceback.
    """
    try:
        yield
    except (UserCodeError, ConfigError, torch.OutOfMemoryError):
        raise
    except SystemExit as error:
        raise of_exit(error, f"{what}: ") from error
    except Exception as error:
        if is_of_peer_or_device(error):
            raise
        raise raised(error, f"{what}: ") from error


def raised(error: Exception, what: str = "") -> UserCodeError:
    """Return the error for an exception of a user's code, after `what`; the class shows if it may pass."""
    kind = PassingCodeError if may_pass(error) else UserCodeError
    relative = "no known parent package" in str(error)
    advice = "; name a module of a package as package.module:NAME, not as FILE.py" if relative else ""
    return kind(f"{what}{description(error)}{advice}")


def of_exit(error: SystemExit, what: str = "") -> UserCodeError:
    """Return the error for user code that ends the program: with 0 it would look like a finished run."""
    return UserCodeError(
        f"{what}ends the program: {description(error)}; move code that only a script needs, such as reading "
        "its command line, below: if __name__ == '__main__':"
    )


def is_of_peer_or_device(error: Exception) -> bool:
    """Return whether an error in a user's code is of a device or of another rank: another try may succeed."""
    if isinstance(error, torch.AcceleratorError):
        return INDEX_ON_GPU not in str(error)
    of_peer = isinstance(error, RuntimeError) and any(sign in str(error) for sign in PEER_GONE)
    return of_peer or isinstance(error, dist.DistError)


def description(error: BaseException) -> str:
    """Return kind and text of an error, and the innermost line of the user's code in its traceback."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    text, where = " ".join(str(error).split()) or "without a message", place_of(error)
    if isinstance(error, SyntaxError) and error.filename:
        text, where = error.msg, f"{Path(error.filename).name}:{error.lineno}"
    return f"{type(error).__name__}: {text}{f' ({where})' if where else ''}"


def place_of(error: BaseException) -> str:
    """Return FILE:LINE in FUNCTION of the innermost frame in a user's code; empty if there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_of_user(frame.filename)]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def is_of_user(file: str) -> bool:
    """Return whether a source file is neither installed nor of this trainer."""
    if file.startswith("<"):
        return False
    folder = file.rpartition("/")[0]  # a Path for each of a process's thousands of modules takes 0.1 s
    return not _is_installed(folder if folder.startswith("/") else str(Path(file).parent.absolute()))


def is_class_of_user(kind: type) -> bool:
    """Return whether a user's module, or a notebook, defines a class; True for SimpleNamespace too."""
    source = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    is_typed_in = kind.__module__ == "__main__" and not source
    return kind is SimpleNamespace or is_typed_in or bool(source and is_of_user(source))


@cache
def _is_installed(folder: str) -> bool:
    """Return whether a folder is of installed packages; cached, as torch has thousands of modules.

    The folder counts, not the file: some installers link each file from elsewhere.
    """
    place = Path(folder).resolve()
    of_packages = not PACKAGES.isdisjoint(place.parts)  # also those of another environment on the path
    return of_packages or not NOT_OF_USERS.isdisjoint((place, *place.parents))


def files(directory: Path, *, with_main: bool = False) -> dict[str, bytes]:
    """Return path -> content of all the user's modules, including those that functions import later.

    Paths are relative to where the run was started, or to its folder `code`; else they are module names.
    """
    loaded = _loaded(with_main=with_main)
    places = {name: Path(str(module.__file__)) for name, module in loaded.items()}
    roots = (directory / FOLDER).resolve(), Path.cwd().resolve()
    sources = {}
    for name, path in (reachable(loaded, is_of_user) | places).items():  # loaded modules take precedence
        with nullcontext() if name in places else suppress(OSError):  # its import would report it
            sources[_title(path.resolve(), name, roots)] = path.read_bytes()
    return dict(sorted(sources.items()))


def _loaded(*, with_main: bool) -> dict[str, ModuleType]:
    modules = {}
    for name, module in list(sys.modules.items()):
        source = getattr(module, "__file__", None) or ""
        if source.endswith(".py") and is_of_user(source) and Path(source).is_file():
            modules[name] = module
    if not with_main:
        modules.pop("__main__", None)
    return modules


def _title(path: Path, name: str, roots: Iterable[Path]) -> str:
    root = next((root for root in roots if path.is_relative_to(root)), None)
    inner = "/__init__.py" if path.stem == "__init__" else ".py"
    return str(path.relative_to(root)) if root else name.replace(".", "/") + inner


def identity(sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return the part of a run's identity from the user's code: a key for each file, its hash as JSON."""
    return {f"{FOLDER}.{name}": json.dumps(sha256(text).hexdigest()[:16]) for name, text in sources.items()}


def archive(sources: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in sources.items():
            packed.writestr(zipfile.ZipInfo(name, ZIP_EPOCH), content)
    return buffer.getvalue()


def unpack(packed: bytes, directory: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(packed)) as opened:
        opened.extractall(directory / FOLDER)


def keep(sources: Mapping[str, bytes], directory: Path) -> None:
    for name, content in sources.items():
        file = directory / FOLDER / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
