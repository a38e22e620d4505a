"""Starts trainers and functions by forking a process that has their packages loaded.

Inside ``preloaded()`` a ``subprocess.Popen`` of ``python -m gpu_fleet ...`` or torchrun asks a server, which
has packages loaded and no module of ours, to fork: a tenth of a second in place of four. What comes of it is
a child of whoever asked, as after an exec: with its process id, session, signals, exit status, folder,
streams, words and variables, which ``/proc`` shows. It runs the module as ``python -m`` does, and forks what
it starts in turn. Inside ``preloaded_functions()`` the same holds for ``python -I -S``, by which a test calls
a function's archive; its server sees the packages that Lambda brings, and has read what botocore reads.

The workers of pytest-xdist are forked so too, where they will run trainers. A worker's server of trainers is
its fork, from before it loaded anything more, and the server of `ranks` is a fork of that one.

Unlike a new interpreter it has the server's hash seed, and what packages read of the environment while they
load. What is to be proven with that too is started outside of ``preloaded()``.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import multiprocessing.util
import os
import random
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

PACKAGES = (
    *("torch", "torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"),
    *("torch.distributed.pipelining", "torch.distributed.run", "torch.distributed.tensor.parallel"),
    *("torch.optim.swa_utils", "torch.profiler", "transformers.conversion_mapping"),
    *("transformers.models.llama.modeling_llama", "aliyunsdkcore.client", "boto3", "click", "numpy"),
    *("PIL.PngImagePlugin", "psutil", "pydantic", "pynvml", "safetensors.torch", "tensorboardX"),
)
# What functions make clients of.
SERVICES = (
    *("autoscaling", "ce", "cloudwatch", "ec2", "identitystore", "imagebuilder", "pricing"),
    *("s3", "sns", "sts"),
)
FUNCTIONS = ("boto3", "s3transfer.manager", "urllib3", "dateutil.parser", "dateutil.tz", "ssl")
TORCHRUN, TRAINER = "torch.distributed.run", "gpu_fleet"
# What begins a worker of pytest-xdist, and the server of multiprocessing's that `ranks` asks.
WORKER, RANKS = "import sys;exec(eval(sys.stdin.readline()))", "from multiprocessing.forkserver import main; "
STARTERS = ("launch", "measure", "run", "work")  # commands of the trainer that start others
# Of linux/prctl.h.
PR_SET_NAME, PR_SET_MM, PR_SET_MM_ARG_END, PR_SET_CHILD_SUBREAPER = 15, 35, 9, 36
# Bytes for a command line and an environment where /proc shows them; each begins as one long word.
ROOM = 64 * 1024
FILLER = "GPU_FLEET_TESTS_ROOM"


class Command(NamedTuple):
    """A program of an interpreter, and the words after it."""

    flag: str  # -m, -c, or nothing for a script
    name: str  # the module, the code or the script's path
    words: list[str]


_lock = threading.Lock()
_libc = ctypes.CDLL(None, use_errno=True)
_spawn = multiprocessing.util.spawnv_passfds


@contextmanager
def preloaded() -> Iterator[None]:
    """Fork what this process and what it starts would load anew."""
    with _forking(_server, _trainer_of):
        yield


def ranks_server(path: bytes, words: Sequence[str], kept: Sequence[int]) -> int:
    """The process id of multiprocessing's server, in the place of its own ``util.spawnv_passfds``."""
    if not words[-1].startswith(RANKS):
        return _spawn(path, words, kept)
    here = {"environment": dict(os.environ), "folder": os.fspath(Path.cwd()), "session": False, "group": -1}
    return _ask(_server(), {"words": [*map(os.fsdecode, words)], "kept": [*kept], **here}, (0, 1, 2, *kept))


@contextmanager
def preloaded_functions(runtime: Path) -> Iterator[None]:
    """Fork what calls an archive by ``python -I -S``; `runtime` leads to the packages that Lambda brings."""
    with _forking(lambda: _functions_server(runtime), _function_of):
        yield


@contextmanager
def _forking(
    server: Callable[[], socket.socket], command_of: Callable[..., Command | None]
) -> Iterator[None]:
    before = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # the one place where all of it passes
    _fork_from(server, before, command_of)
    try:
        yield
    finally:
        subprocess.Popen._execute_child = before  # type: ignore[attr-defined]


def _fork_from(
    server: Callable[[], socket.socket],
    execute: Callable[..., None],
    command_of: Callable[..., Command | None],
) -> None:
    names = inspect.signature(execute)

    def execute_or_fork(self: "subprocess.Popen[Any]", *given: Any) -> None:
        asked = names.bind(self, *given).arguments
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        words = [] if isinstance(asked["args"], str) else [os.fspath(word) for word in asked["args"]]
        plain = not (asked["preexec_fn"] or asked["pass_fds"] or asked["shell"] or asked["executable"])
        if not plain or command_of(words, environment) is None:
            execute(self, *given)
            return
        streams = [
            own if stream == -1 else stream
            for own, stream in enumerate((asked["p2cread"], asked["c2pwrite"], asked["errwrite"]))
        ]
        wanted = {
            "words": words,
            "environment": environment,
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "session": asked["start_new_session"],
            "group": asked["process_group"],
            "kept": [],
        }
        self.pid = _ask(server(), wanted, streams)
        self._child_created = True  # type: ignore[attr-defined]
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute_or_fork  # type: ignore[attr-defined]


def _trainer_of(words: Sequence[str], environment: Mapping[str, str]) -> Command | None:
    """What this interpreter would run, where it is what the server of trainers forks; else None."""
    if not words or shutil.which(words[0], path=environment.get("PATH")) != sys.executable:
        return None
    rest = [*words[1:]]
    if rest[-2:-1] == ["-c"] and (rest[-1] == WORKER or rest[-1].startswith(RANKS)):
        return Command("-c", rest[-1], [])
    if rest[:1] in (["-u"], ["-P"]):
        del rest[0]
    if rest[:1] == ["-m"] and rest[1:2] in ([TORCHRUN], [TRAINER]):
        return Command("-m", rest[1], rest[2:])
    is_rank = "TORCHELASTIC_RUN_ID" in environment
    if is_rank and rest[:1] == ["-m"]:
        return Command("-m", rest[1], rest[2:])
    return Command("", rest[0], rest[1:]) if is_rank and rest and rest[0].endswith(".py") else None


def _function_of(words: Sequence[str], _: Mapping[str, str]) -> Command | None:
    """The caller of an archive; None for another program."""
    if words[:3] != [sys.executable, "-I", "-S"] or len(words) < 4:
        return None
    flag, rest = ("-c", words[4:]) if words[3] == "-c" else ("", words[3:])
    return Command(flag, rest[0], [*rest[1:]])


# who asks


def _ask(server: socket.socket, wanted: Mapping[str, Any], streams: Sequence[int]) -> int:
    """The process id of a new child of this process."""
    with _lock:
        # what loses its parent in between, the one that the server forks, gets this one for it
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            content = json.dumps(wanted).encode()
            socket.send_fds(server, [len(content).to_bytes(8)], [*streams])
            server.sendall(content)
            return int.from_bytes(_exactly(server, 8))
        finally:
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _exactly(pipe: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        part = pipe.recv(count - len(content))
        if not part:
            raise EOFError("the other end is closed")
        content += part
    return content


@cache
def _server() -> socket.socket:
    """The server of this process that forks trainers; it ends with it. A forked worker has begun with one."""
    return getattr(sys.modules["__main__"], "server", None) or _started("-P")


@cache
def _functions_server(runtime: Path) -> socket.socket:
    """The server of this process that forks functions."""
    return _started("-I", "-S", runtime=str(runtime))


def _started(*flags: str, runtime: str = "") -> socket.socket:
    here, there = socket.socketpair()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with there:
        subprocess.Popen(
            [sys.executable, *flags, __file__, str(there.fileno()), runtime, " " * ROOM],
            env={**environment, "OMP_NUM_THREADS": "1", FILLER: " " * ROOM},
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
        )
    assert _exactly(here, 6) == b"loaded"
    return here


# the servers


def main(pipe: socket.socket, runtime: str) -> None:
    """Load the packages, and fork as long as somebody may ask."""
    if runtime:
        load_functions(runtime)
    else:
        load_trainers()
    gc.collect()
    gc.freeze()  # a child's collector would else copy each page with an object of theirs
    pipe.sendall(b"loaded")
    serve(pipe)


def load_trainers() -> None:
    """Load what trainers import."""
    for package in PACKAGES:
        importlib.import_module(package)
    # as every export asks for them, a tenth of a second
    sys.modules["transformers.conversion_mapping"].get_checkpoint_conversion_mapping("llama")


def load_functions(runtime: str) -> None:
    """Load what Lambda brings, and what botocore reads for a client; then forget where it lies."""
    sys.path.append(runtime)
    for package in FUNCTIONS:
        importlib.import_module(package)
    make_clients_quickly()
    made = sys.modules["boto3"].session.Session("none", "none", region_name="us-east-1")
    for service in SERVICES:
        made.client(service)
    sys.path.remove(runtime)


def make_clients_quickly() -> None:
    """Read the descriptions of services, which never change, once in this process, not in each session.

    Reading takes a tenth of a second a client, and the seven hundred methods of EC2's a hundredth.
    """
    session, client = (importlib.import_module(f"botocore.{name}") for name in ("session", "client"))
    session.create_loader = cache(session.create_loader)
    creator = client.ClientCreator
    make, made = creator._create_methods, {}

    def methods(self: Any, model: Any) -> dict[str, Any]:
        description = model._service_description  # kept, so that its id stays its own; an agent's is smaller
        if id(description) not in made:
            made[id(description)] = description, make(self, model)
        return {**made[id(description)][1]}

    creator._create_methods = methods


def serve(pipe: socket.socket) -> None:
    """Fork for the one at the other end of the pipe until it is closed, and become each child on its side."""
    while True:
        size, streams, _, _ = socket.recv_fds(pipe, 8, 3 + 2)  # of a server of ranks two more
        if not size:
            os._exit(0)
        wanted = json.loads(_exactly(pipe, int.from_bytes(size)))
        reading, writing = os.pipe()
        middle = os.fork()
        if middle == 0:
            child = os.fork()
            if child:
                os.write(writing, child.to_bytes(8))
                os._exit(0)
            os.close(reading)
            os.close(writing)
            pipe.close()
            become(wanted, streams)
        os.waitpid(middle, 0)  # now the child is of the one who asked
        for stream in (*streams, writing):
            os.close(stream)
        pipe.sendall(os.read(reading, 8))
        os.close(reading)


# what it forks


def become(wanted: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    """Go on as the program that was asked for, to its end."""
    status = 1
    try:
        if wanted["session"]:
            os.setsid()
        if wanted["group"] != -1:
            os.setpgid(0, wanted["group"])
        _lay_out(streams, (0, 1, 2, *wanted["kept"]))
        asked = (wanted["words"], wanted["environment"])
        command = _function_of(*asked) or _trainer_of(*asked)
        assert command is not None
        if command.name == TORCHRUN or (
            command.name == TRAINER and command.words[:1] and command.words[0] in STARTERS
        ):
            here = _forked_server()
            _fork_from(lambda: here, subprocess.Popen._execute_child, _trainer_of)  # type: ignore[attr-defined]
        elif command.flag == "-c":
            main = ModuleType("__main__")  # without a file, which would be taken for a user's
            if command.name == WORKER:
                main.server = _forked_server()  # type: ignore[attr-defined]
            sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        _look_new(wanted)
        status = _run(command)
    except BaseException:  # noqa: BLE001 - the last word of a process
        traceback.print_exc()
    finally:
        _end(status)


def _lay_out(streams: Sequence[int], places: Sequence[int]) -> None:
    """Give each stream the number that it has for whoever asked, and close all others."""
    above = max(*streams, *places) + 1
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, above) for stream in streams]
    for place, stream in zip(places, moved, strict=True):
        os.dup2(stream, place)
    for number in range(3, max(moved) + 1):
        if number not in places:
            with suppress(OSError):
                os.close(number)


def _forked_server() -> socket.socket:
    """A server for what this process will start, from before it has done anything."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        quiet = os.open(os.devnull, os.O_RDWR)
        for place in range(3):
            os.dup2(quiet, place)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # it ends with the one who asks
        with suppress(EOFError, OSError):
            serve(there)
        os._exit(0)
    there.close()
    return here


def _look_new(wanted: Mapping[str, Any]) -> None:
    """What a process has from its exec on: environment, folder, streams, signals, chance, path."""
    environment, words = wanted["environment"], wanted["words"]
    os.environ.clear()
    os.environ.update(environment)
    _show(words, environment)
    os.chdir(wanted["folder"])
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unbuffered = words[1:2] == ["-u"]
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115 - to its end
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            open(place, "wb", 0 if unbuffered else -1, closefd=False),  # noqa: SIM115 - to its end
            errors=errors,
            line_buffering=place == 2,
            write_through=unbuffered,
        )
        for place, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    random.seed()
    if not sys.flags.isolated:
        _look_like_a_trainer(words, environment)
    importlib.invalidate_caches()


def _look_like_a_trainer(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """What its packages take of chance and threads, and its path."""
    sys.modules["numpy"].random.seed()
    threads = environment.get("OMP_NUM_THREADS") or str(os.cpu_count())
    sys.modules["torch"].set_num_threads(int(threads))
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = [*([] if words[1:2] == ["-P"] else [str(Path.cwd())]), *folders]


def _show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Let /proc say this command line and environment."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments_at, arguments_end, environment_at, environment_end = map(int, fields[45:49])
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    _write(line, arguments_at, arguments_end)
    # root alone may; else the line is followed by empty words
    _libc.prctl(PR_SET_MM, PR_SET_MM_ARG_END, ctypes.c_ulong(arguments_at + len(line)), 0, 0)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    _write(variables, environment_at, environment_end)
    _libc.prctl(PR_SET_NAME, Path(sys.executable).name.encode(), 0, 0, 0)


def _write(shown: bytes, begin: int, end: int) -> None:
    room = end - begin
    assert len(shown) < room, f"{len(shown)} bytes are more than the room for them"
    ctypes.memmove(begin, shown + bytes(room - len(shown)), room)


def _run(command: Command) -> int:
    """The exit status of a module, of code, or of a script, whose folder takes the place of this one."""
    flag, name, words = command
    sys.argv = ["-c" if flag == "-c" else name, *words]
    sys.orig_argv = [sys.executable, *([flag] if flag else []), *sys.argv]
    try:
        if flag == "-m":
            sys.modules.pop(name, None)  # it is loaded, and would warn that it runs twice
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        elif flag == "-c":
            exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
        else:
            if not sys.flags.isolated:
                sys.path[0] = str(Path(name).resolve().parent)
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - said as an interpreter says it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """As an interpreter ends, but that memory is left to the kernel."""
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for what is no daemon
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
