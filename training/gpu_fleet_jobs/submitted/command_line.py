"""Files, modules and code of the user that a command line starts or names. Pure: reads the words alone.

It parses Python, shells, and launchers of ranks (torchrun, accelerate, deepspeed). Of any other program it
takes the words that may be files.
"""

import re
import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath

from gpu_fleet.core.errors import ConfigError

PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
SHELLS = frozenset({"bash", "dash", "sh", "zsh"})
LAUNCHERS = frozenset({"accelerate", "deepspeed", "torchrun"})
LAUNCHING = frozenset({"accelerate.commands.launch", "torch.distributed.launch", "torch.distributed.run"})
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# Programs that start another program, named by a later word.
WRAPPERS = frozenset(
    {
        *("conda", "env", "exec", "ionice", "micromamba", "mpirun", "nice", "nohup", "numactl", "pipenv"),
        *("poetry", "stdbuf", "taskset", "time", "timeout", "uv"),
    }
)
UV_RUN = ["uv", "run"]  # starts a script without the word python
# Shell commands that create no files, so a missing file cannot come from them.
PREPARING = frozenset({"cd", "exec", "export", "set", "ulimit", "umask"})
# Python's own options (docs.python.org/3/using/cmdline.html): with one more word; with a module or code.
WITH_WORD = frozenset({"-W", "-X", "--check-hash-based-pycs"})
LAST = re.compile(r"-[bBdEiIOPqsSuvx]*([mc])(.*)", re.DOTALL)
SHELL_CODE = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
IN_SCRIPT = re.compile(r"[\w./-]+\.(?:py|sh)\b")
MODULE_IN_SCRIPT = re.compile(r"\bpython[0-9.]*\s+(?:-[a-zA-Z]+\s+)*?-m\s*([\w.]+)")
CD_IN_SCRIPT = re.compile(r"\bcd\s+([\w./-]+)")
# Options whose value is a file to read; of others, such as --save-config, it may be one to write.
CONFIG_OPTION = re.compile(r"--(?:deepspeed[-_])?config(?:[-_]file)?")
CONFIG_FILE = re.compile(r"[\w.-][\w./-]*\.(?:json|toml|ya?ml)")  # below the folder of the run
EXPANDED = frozenset("$`*?[{~")  # a shell replaces a word that has one of these

ANYWHERE = "/"


@dataclass
class CommandLine:
    """Result of parsing a command line.

    Attributes:
        names: words that may be files or folders, including those after a `=`.
        programs: files that the command starts; it cannot run without them.
        configs: configuration files that options name, without a shell that could make them.
        modules: modules that Python starts by -m.
        code: Python code given by -c.
        folders: folders that may hold the files: this one, and those that a shell changes to.
        by_shell: a shell reads the command, and may itself create the folders that it names.
        makes: there are several commands, and one of them may create a missing file.
    """

    names: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=lambda: [""])
    by_shell: bool = False
    makes: bool = False

    @property
    def title(self) -> str:
        """Short name of the started program or module; empty if unknown."""
        own = [PurePosixPath(program).stem for program in self.programs]
        own += [module.rpartition(".")[2] for module in self.modules if module not in LAUNCHING]
        return own[0] if own else ""


def read(words: Sequence[str]) -> CommandLine:
    """Parse a command line; raises ConfigError if no system could start it."""
    if not words[0]:
        raise ConfigError("COMMAND: its first word is empty; write a program there")
    if words[0].startswith("-"):
        raise ConfigError(f"{words[0]!r} of COMMAND: is an option; write a program before it")
    if ASSIGNMENT.fullmatch(words[0]):
        raise ConfigError(f"{words[0]!r} of COMMAND: is no program; write env {words[0]} PROGRAM")
    if any(letter.isspace() for letter in words[0]):
        raise ConfigError(
            f"{words[0]!r} of COMMAND: is one word; write it without the quotes around all of it"
        )
    line = CommandLine()
    _read(words, line)
    if not line.by_shell:
        line.configs = _configs(words)
        for code in line.code:
            _check_code(code)
    return line


def _configs(words: Sequence[str]) -> list[str]:
    """Return the values of options for configuration files, after a space or a ``=``."""
    pairs = [*pairwise(words), *((name, value) for name, _, value in (word.partition("=") for word in words))]
    return [value for name, value in pairs if CONFIG_OPTION.fullmatch(name) and CONFIG_FILE.fullmatch(value)]


def _check_code(code: str) -> None:
    """Compile Python code, without running it; raises ConfigError for a syntax error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "-c", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ConfigError(f"-c {code!r} of COMMAND: no Python can read it: {error}") from error
    except (MemoryError, RecursionError, ValueError):
        return  # too deep for this computer's


def in_script(text: str) -> CommandLine:
    """Return the programs and modules that a shell script names, and the folders that it changes to."""
    modules = MODULE_IN_SCRIPT.findall(text)
    folders = ["", *CD_IN_SCRIPT.findall(text)]
    return CommandLine(names=IN_SCRIPT.findall(text), modules=modules, folders=folders, by_shell=True)


def _read(words: Sequence[str], line: CommandLine) -> None:
    line.names += [name for word in words for name in (word, word.partition("=")[2]) if name]
    if "/" in words[0]:
        _start(words[0], line)
    wrapped = PurePosixPath(words[0]).name in WRAPPERS
    for number, word in enumerate(words if wrapped else words[:1]):
        kind, rest = PurePosixPath(word).name, words[number + 1 :]
        if PYTHON.fullmatch(kind):
            return _read_python(rest, line)
        if kind in SHELLS:
            return _read_shell(rest, line)
        if kind in LAUNCHERS:
            return _read_launcher(rest, line)
    if [PurePosixPath(words[0]).name, *words[1:2]] == UV_RUN and words[2:] and words[2].endswith(".py"):
        _start(words[2], line)
    return None


def _read_python(words: Sequence[str], line: CommandLine) -> None:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        last = LAST.fullmatch(word)
        if last is not None:
            given = last[2] or (rest.pop(0) if rest else "")
            if last[1] == "c":
                line.code.append(given)
                return
            line.modules.append(given)
            if given in LAUNCHING:
                _read_launcher(rest, line)
            return
        if word in WITH_WORD:
            rest = rest[1:]
        elif not word.startswith("-"):
            _start(word, line)
            return


def _read_launcher(words: Sequence[str], line: CommandLine) -> None:
    """Read the first program or module; earlier words belong to the launcher itself."""
    for number, word in enumerate(words):
        if word.endswith(".py"):
            _start(word, line)
            return
        if word in ("-m", "--module") and number + 1 < len(words) and MODULE.fullmatch(words[number + 1]):
            line.modules.append(words[number + 1])
            return


def _read_shell(words: Sequence[str], line: CommandLine) -> None:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if SHELL_CODE.fullmatch(word):
            commands = [command for command in _commands(rest[0] if rest else "") if command]
            line.by_shell = True
            line.makes = len([command for command in commands if command[0] not in PREPARING]) > 1
            for command in commands:
                _read_one(command, line)
            return
        if word in ("-o", "+o", "-O", "+O"):
            rest = rest[1:]
        elif not word.startswith(("-", "+")):
            _start(word, line)
            return


def _read_one(command: Sequence[str], line: CommandLine) -> None:
    """Read one command of a shell's code."""
    words = list(command)
    while words and ASSIGNMENT.fullmatch(words[0]):
        words.pop(0)
    if words[:1] == ["cd"]:
        line.folders += [word if EXPANDED.isdisjoint(word) else ANYWHERE for word in words[1:2]]
    elif words:
        _read(words, line)


def _commands(text: str) -> Iterator[list[str]]:
    """Yield each command of a shell's code as its words; raises ConfigError."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();|&\n")
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    command: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set("();|&\n"):
                yield command
                command = []
            else:
                command.append(word)
    except ValueError as error:
        raise ConfigError(f"{text!r} of COMMAND: no shell can read it: {error}") from error
    yield command


def _start(word: str, line: CommandLine) -> None:
    if EXPANDED.isdisjoint(word) and not PurePosixPath(word).is_absolute():
        line.programs.append(word)
