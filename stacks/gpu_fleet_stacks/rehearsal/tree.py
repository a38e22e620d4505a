"""A stack's resources as a tree: components are branches, resources are leaves, in order of registration."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich import tree as rich_tree
from rich.console import Console
from rich.live import Live
from rich.segment import Segments
from rich.text import Text

from gpu_fleet_image.core.counting import counted
from gpu_fleet_stacks.rehearsal.recorded_outputs import reason
from gpu_fleet_stacks.rehearsal.registrations import Registration, RegistrationOutcome

# More leaves of one type than this in a branch become a single line with their number.
FOLD_ABOVE = 4
REFRESHES_PER_SECOND = 10
# A file or a pipe has no width, so lines are whole there.
LONGEST_LINE = 1000
PROVIDERS = "pulumi:providers:"


@dataclass(frozen=True)
class Marks:
    """The mark before a leaf: created in moto, or only recorded."""

    created: str
    recorded: str


MARKS = Marks("●", "○")
ASCII_MARKS = Marks("*", "o")


class Tree:
    """Tree that shows a run while it happens, and whole at the end; without a terminal only the whole tree.

    Use it as ``with Tree(console, "aws-dev") as tree: run_program("aws-dev", listener=tree.listen)``.

    Attributes:
        seconds: since the block began; constant after its end.
    """

    def __init__(self, console: Console, stack: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = 0.0
        self._console, self._stack, self._clock = console, stack, clock
        self._seen: list[Registration] = []
        self._began: float | None = None
        self._ended = ""
        self._live: Live | None = None

    def listen(self, registration: Registration) -> None:
        """Record one registration; any thread may call it."""
        self._seen.append(registration)

    def __enter__(self) -> Self:
        self._began = self._clock()
        if self._console.is_terminal:
            self._live = Live(self, console=self._console, refresh_per_second=REFRESHES_PER_SECOND)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tick()
        self._ended = "stands" if kind is None else "stopped"
        if self._live is not None:
            self._live.stop()
        else:
            lines = self._console.render(self, self._console.options.update_width(LONGEST_LINE))
            self._console.print(Segments(lines), crop=False, end="")

    def __rich__(self) -> rich_tree.Tree:
        if not self._ended:
            self._tick()
        marks = ASCII_MARKS if self._console.options.ascii_only else MARKS
        label = _heading(self._stack, self._ended or "in progress", self._seen, self.seconds, marks)
        return resource_tree(label, tuple(self._seen), marks, whole=bool(self._ended))

    def _tick(self) -> None:
        if self._began is not None:
            self.seconds = self._clock() - self._began


def resource_tree(
    label: Text, registrations: Sequence[Registration], marks: Marks = MARKS, *, whole: bool = True
) -> rich_tree.Tree:
    """Return the tree of everything registered.

    Args:
        registrations: in order; a parent comes before its children.
        marks: the mark before a leaf.
        whole: False for the newest leaf of each branch alone, which fits on a screen.
    """
    children: dict[str, list[Registration]] = defaultdict(list)
    branches = {registration.urn for registration in registrations if _is_branch(registration)}
    for entry in registrations:
        if not entry.type.startswith(PROVIDERS):
            children[entry.parent if entry.parent in branches else ""].append(entry)
    root = rich_tree.Tree(label, highlight=False)
    _grow(root, "", "", children, marks, whole=whole)
    if whole:
        for line in _reasons(registrations, marks):
            root.add(line)
    return root


def _reasons(registrations: Sequence[Registration], marks: Marks) -> list[Text]:
    """Return why resources are only recorded: each reason once, with the number and the types."""
    types: dict[str, list[str]] = defaultdict(list)
    for registration in registrations:
        if registration.outcome is RegistrationOutcome.RECORDED:
            types[reason(registration.type)].append(_short(registration.type))
    return [
        Text.assemble(
            (marks.recorded, "yellow"),
            f" {len(same)} only recorded, {why}",
            (f": {', '.join(sorted(set(same)))}" if len(set(same)) <= FOLD_ABOVE else "", "dim"),
            no_wrap=True,
        )
        for why, same in types.items()
    ]


def _grow(
    node: rich_tree.Tree,
    urn: str,
    prefix: str,
    children: dict[str, list[Registration]],
    marks: Marks,
    *,
    whole: bool,
) -> None:
    leaves = [child for child in children[urn] if not _is_branch(child)]
    for line in _leaf_lines(leaves if whole else leaves[-1:], prefix, marks):
        node.add(line)
    for branching in children[urn]:
        if _is_branch(branching):
            below = _below(branching.urn, children)
            branch = node.add(_branch_line(branching, below))
            _grow(branch, branching.urn, branching.name, children, marks, whole=whole)


def _is_branch(registration: Registration) -> bool:
    return registration.outcome is RegistrationOutcome.GROUPED and not registration.type.startswith(PROVIDERS)


def _below(urn: str, children: dict[str, list[Registration]]) -> list[Registration]:
    """Return every resource under a branch."""
    below: list[Registration] = []
    for child in children.get(urn, []):
        below += _below(child.urn, children) if _is_branch(child) else [child]
    return below


def _heading(
    stack: str, state: str, registrations: Sequence[Registration], seconds: float, marks: Marks
) -> Text:
    created, recorded = counts(registrations)
    return Text.assemble(
        (f"stack {stack}", "bold"),
        f" {state}: ",
        (f"{marks.created} {created} created in moto", "green"),
        ", ",
        (f"{marks.recorded} {recorded} only recorded", "yellow"),
        f", {seconds:.1f} s",
    )


def counts(registrations: Sequence[Registration]) -> tuple[int, int]:
    """Return the numbers of created and of recorded resources."""
    return (
        sum(registration.outcome is RegistrationOutcome.CREATED for registration in registrations),
        sum(registration.outcome is RegistrationOutcome.RECORDED for registration in registrations),
    )


def _branch_line(branch: Registration, below: Sequence[Registration]) -> Text:
    seconds = sum(leaf.seconds for leaf in below)
    line = Text.assemble((_short(branch.type), "bold"), f" {branch.name}", no_wrap=True)
    return line.append(f"  {counted(len(below), 'resource')}, {seconds:.2f} s", "dim")


def _leaf_lines(leaves: Sequence[Registration], prefix: str, marks: Marks) -> list[Text]:
    by_kind: dict[tuple[str, RegistrationOutcome], list[Registration]] = defaultdict(list)
    for leaf in leaves:
        by_kind[leaf.type, leaf.outcome].append(leaf)
    lines: list[Text] = []
    for same in by_kind.values():
        if len(same) > FOLD_ABOVE:
            lines.append(_folded_line(same, marks))
        else:
            lines += [_leaf_line(leaf, prefix, marks) for leaf in same]
    return lines


def _leaf_line(leaf: Registration, prefix: str, marks: Marks) -> Text:
    name = leaf.name.removeprefix(prefix).lstrip("-") or leaf.name
    line = _marked(leaf, marks).append(f" {_short(leaf.type)} ").append(name, "cyan")
    return line.append(f"  {leaf.id}", "dim") if leaf.outcome is RegistrationOutcome.CREATED else line


def _folded_line(same: Sequence[Registration], marks: Marks) -> Text:
    first = same[0]
    line = _marked(first, marks).append(f" {len(same)} x {_short(first.type)}")
    created = first.outcome is RegistrationOutcome.CREATED
    return line.append(f"  {first.id} ... {same[-1].id}", "dim") if created else line


def _marked(leaf: Registration, marks: Marks) -> Text:
    line = Text(no_wrap=True)
    if leaf.outcome is RegistrationOutcome.CREATED:
        return line.append(marks.created, "green")
    return line.append(marks.recorded, "yellow")


def _short(type_token: str) -> str:
    """Return the short type: ``aws:ec2/vpc:Vpc`` -> ``Vpc``."""
    return type_token.rsplit(":", 1)[-1]
