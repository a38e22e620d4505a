"""Each guard of the reaper broken by name, and each condition on the way of a verdict negated by machine.

Who may see it are all plays, on both clouds, and the quick tests of ``tests/reaper``. First one run of the
whole product tells which of them evaluates which condition: nobody else can see it negated. Then each
mutant lives in a process of its own, forked from one that has everything imported and every test collected,
and is shown to those who evaluate it until one fails: who saw it the last time
(``build/reaper_mutants.json``), then who saw others in the same function, then the quickest. So a second run
takes less than the first, and still believes nothing that it has not run. Who evaluates what is kept
(``build/reaper_evaluated.json``) until any source or test changes.

A survivor must be explained in ``tests/reaper/survivors.toml``: it changes nothing. An explanation of what
is seen, or is no mutant any more, is wrong as well. ``python -m tests.bench.bench_reaper_mutants verdict
answers`` negates in these modules alone, and gives no figure.
"""

import gc
import hashlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings
from rich.console import Console

from tests.reaper.findings import FINDINGS, Finding
from tests.reaper.mutants import Mutant, explained, home, negations, probe
from tests.reaper.plays import CLOUDS, PLAYS, perform
from tests.reaper.test_mutants import CASES, NAMED

ROOT = Path(__file__).resolve().parents[2]
MEMORY = ROOT / "build" / "reaper_mutants.json"
EVALUATED = ROOT / "build" / "reaper_evaluated.json"
SOURCES = ("image", "stacks", "tests")  # what a play or a test of the reaper may read
COMMAND = "python -m tests.bench.bench_reaper_mutants"
# A function of each module on the way of a verdict, wherever it lies.
DECIDING = (
    "is_quiet",
    "mark_of",
    "assess",
    "observe",
    "next_act",
    "NoticeListener.look",
    "Exchange.claim",
    "_Batch.end",
    "_Sweep.look_and_act",
    "Lease.renew",
    "due_alerts",
    "activity",
    "Drain.run",
    "Store.replace",
    "OssStore.replace",
    "FromMetadata.mark",
    "aws:Instances.fleet",
    "alicloud:Instances.fleet",
    "aws:Leftovers.find",
    "alicloud:Leftovers.find",
    "alicloud:Hook.complete",
    "_judge_one",
)
NO_WITNESSES = (
    # they break the product themselves, or look at processes of their own, which no mutant reaches
    *("test_mutants", "test_agent_process", "test_real_programs", "test_readme", "test_custodian_cases"),
    # what they see, they see by chance, and late
    *("test_faults", "test_alicloud_faults", "test_spending_faults"),
)
WITNESS_MAY_TAKE_S = 4.0  # of the processor's time
EXAMPLES = 25  # of a property; the tests themselves try more
NO_END_S = 60.0
TELL_EVERY = 200
SAY = Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print

Entries = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Witness:
    """A play or a test.

    Attributes:
        name: of a test its id, of a play that and its cloud.
        fails: performs it; whether anything goes wrong.
    """

    name: str
    fails: Callable[[], bool]


@dataclass(frozen=True)
class Evaluated:
    """What one witness came across in the whole product.

    Attributes:
        seconds: of the processor's time.
        conditions: names of their negations.
    """

    seconds: float
    conditions: frozenset[str]


class Hunt:
    """A plugin of pytest: lets it collect the tests, and goes on by itself.

    Args:
        modules: whose conditions are negated.
        named: whether the guards that have names are broken as well.

    Attributes:
        made: negations.
        survivors: those that nobody saw.
        missed: guards that have names, broken, and not seen by the play that is for each.
    """

    def __init__(self, modules: Sequence[ModuleType], *, named: bool) -> None:
        self._modules, self._named = modules, named
        self._last: dict[str, str] = json.loads(MEMORY.read_text()) if MEMORY.exists() else {}
        self._keen = dict[str, list[str]]()
        self.made, self.survivors, self.missed = 0, list[str](), list[str]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of running the tests."""
        gc.freeze()
        if self._named:
            self.missed = [f"{name} on {cloud}" for name, cloud in CASES if not _named_is_seen(name, cloud)]
            self.missed += [one.was for one in FINDINGS if not _is_seen_to_come_back(one, session.items)]
            SAY(f"{len(CASES)} named mutants, {len(FINDINGS)} findings, missed: {self.missed}")
        chosen = [one for one in session.items if Path(one.path).stem not in NO_WITNESSES]
        if not self._modules:
            return True
        witnesses = {one.name: one for one in (*_plays(), *map(_test, chosen))}
        evaluated = _evaluated(list(witnesses.values()))
        for module in self._modules:
            mutants = list(negations(module))
            began, before = time.monotonic(), len(self.survivors)
            for mutant in mutants:
                self._show(mutant, [witnesses[name] for name in self._order(mutant, evaluated)])
            seconds = time.monotonic() - began
            self.made += len(mutants)
            left = len(self.survivors) - before
            SAY(f"{module.__name__}: {len(mutants)} negations, {left} survive, {seconds:.0f} s")
        return True

    def _order(self, mutant: Mutant, evaluated: dict[str, Evaluated]) -> list[str]:
        """Who may see a mutant, the likeliest first."""
        names = [name for name, one in evaluated.items() if mutant.name in one.conditions]
        last, keen = self._last.get(mutant.name), self._keen.get(_function_of(mutant), [])
        return sorted(names, key=lambda name: (name != last, name not in keen, evaluated[name].seconds))

    def _show(self, mutant: Mutant, witnesses: Sequence[Witness]) -> None:
        seen = first_to_fail([mutant], witnesses)
        if seen:
            self._last[mutant.name] = seen
            self._keen.setdefault(_function_of(mutant), []).append(seen)
        else:
            self._last.pop(mutant.name, None)
            self.survivors.append(mutant.name)
            reason = explained().get(mutant.name, "no reason is given")
            SAY(f"SURVIVES {len(witnesses)} that evaluate it: {mutant.name} ({reason})")
        MEMORY.parent.mkdir(exist_ok=True)
        MEMORY.write_text(json.dumps(self._last, indent=0))


def measure() -> Entries:
    """Everything, in one run.

    Raises:
        AssertionError: a mutant is missed, or an explanation is of none that survives.
    """
    hunt = run(tuple(home(name) for name in DECIDING), named=True)
    reasons = explained()
    stale = sorted(reasons.keys() - set(hunt.survivors))
    assert not stale, f"explained, and no survivors: {stale}"
    unexplained = sorted(set(hunt.survivors) - reasons.keys()) + hunt.missed
    assert not unexplained, f"survivors without a reason: {unexplained}"
    counted = len(CASES) + len(FINDINGS) + hunt.made - len(reasons)
    unit = (
        f"of {counted}: {len(NAMED)} named in {len(CASES)} plays, "
        f"{len(FINDINGS)} ways back of what was found, {hunt.made} negations; "
        f"not counted are {len(reasons)} that change nothing"
    )
    return {"reaper_mutants_caught": entry((counted - len(unexplained)) / counted, unit)}


def run(modules: Sequence[ModuleType], *, named: bool) -> Hunt:
    """Hunt in these modules; see ``Hunt``."""
    hunt = Hunt(modules, named=named)
    # pytest-timeout takes the same signal
    quiet = ["-q", "-s", "-p", "no:cacheprovider", "--no-header", "--no-summary", "-o", "timeout=0"]
    chosen = ["-m", "not image and not libraries", "tests/reaper"]
    status = pytest.main([*quiet, *chosen], plugins=[hunt, _NoShrinking()])
    assert status == pytest.ExitCode.OK, f"pytest ended with {status}"
    return hunt


class _NoShrinking:
    """Few examples; and a failure is enough, the smallest one is for people."""

    def pytest_collection(self) -> None:
        settings.register_profile(
            "hunt", settings(), max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate], database=None
        )
        settings.load_profile("hunt")


def _plays() -> list[Witness]:
    return [
        Witness(f"{cloud}: {name}", partial(_goes_wrong, name, cloud)) for cloud in CLOUDS for name in PLAYS
    ]


def _goes_wrong(play: str, cloud: str) -> bool:
    logging.disable(logging.CRITICAL)
    try:
        return perform(play, cloud) != []
    except Exception:  # noqa: BLE001 - a broken product may fail in any way, and is seen then
        return True
    finally:
        logging.disable(logging.NOTSET)


def _test(item: pytest.Item) -> Witness:
    def fails() -> bool:
        return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))

    return Witness(item.nodeid, fails)


def _named_is_seen(name: str, cloud: str) -> bool:
    make, play, _ = NAMED[name]
    return bool(first_to_fail([make()], [Witness(play, partial(_goes_wrong, play, cloud))]))


def _is_seen_to_come_back(finding: Finding, items: Iterable[pytest.Item]) -> bool:
    tests = [_test(one) for one in items if one.nodeid.partition("[")[0] == finding.node]
    assert tests, f"there is no {finding.node}"
    assert not (failed := first_to_fail([], tests)), f"on the whole product: {failed}"
    return bool(first_to_fail([make() for make in finding.broken], tests))


def _function_of(mutant: Mutant) -> str:
    return ": ".join(mutant.name.split(": ")[:2])


def _evaluated(witnesses: Sequence[Witness]) -> dict[str, Evaluated]:
    """What each witness evaluates in all modules, looked at anew where anything changed since."""
    stamp = _stamp(witnesses)
    kept: dict[str, Any] = json.loads(EVALUATED.read_text()) if EVALUATED.exists() else {}
    if kept.get("stamp") == stamp:
        return {name: Evaluated(seconds, frozenset(told)) for name, (seconds, told) in kept["seen"].items()}
    found = _survey(witnesses, [home(name) for name in DECIDING])
    seen = {name: (one.seconds, sorted(one.conditions)) for name, one in found.items()}
    EVALUATED.parent.mkdir(exist_ok=True)
    EVALUATED.write_text(json.dumps({"stamp": stamp, "seen": seen}))
    return found


def _stamp(witnesses: Sequence[Witness]) -> str:
    """Of all that is looked at and all that looks: another one where anything differs."""
    digest = hashlib.sha256("\n".join(one.name for one in witnesses).encode())
    for file in sorted(one for folder in SOURCES for one in (ROOT / folder).rglob("*") if one.is_file()):
        if "__pycache__" not in file.parts:
            digest.update(
                f"{file.relative_to(ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
            )
    return digest.hexdigest()


def _survey(witnesses: Sequence[Witness], modules: Sequence[ModuleType]) -> dict[str, Evaluated]:
    """What each witness evaluates.

    Raises:
        AssertionError: one ended the process.
    """

    def look(tell: Callable[[object], None]) -> None:
        conditions = set[str]()
        probe(modules, conditions.update)
        for one in witnesses:
            conditions.clear()
            began = time.process_time()
            failed = one.fails()
            tell([one.name, failed, time.process_time() - began, sorted(conditions)])

    def hear(one: Any) -> None:
        told.append(one)
        if len(told) % TELL_EVERY == 0:
            SAY(f"{len(told)} of {len(witnesses)} plays and tests looked at")

    told, began = list[Any](), time.monotonic()
    status = _in_a_child(look, hear)
    assert (status, len(told)) == (0, len(witnesses)), f"the survey ended with {status} after {told[-1:]}"
    # who fails anyway sees nothing; without its witness fewer mutants are caught, never more
    failed = [name for name, failed, *_ in told if failed]
    if failed:
        SAY(f"NO WITNESSES, for they fail on the whole product: {failed}")
    taken = [one for one in told if one[2] <= WITNESS_MAY_TAKE_S and not one[1]]
    SAY(
        f"{len(told)} plays and tests looked at in {time.monotonic() - began:.0f} s; "
        f"{len(told) - len(taken)} fail, or take more than {WITNESS_MAY_TAKE_S} s, and are left out"
    )
    return {name: Evaluated(seconds, frozenset(conditions)) for name, _, seconds, conditions in taken}


def first_to_fail(mutants: Iterable[Mutant], witnesses: Iterable[Witness]) -> str:
    """The first witness that sees what these mutants do together, or an empty text."""

    def look(tell: Callable[[object], None]) -> None:
        with ExitStack() as alive:
            for mutant in mutants:
                alive.enter_context(mutant.alive())
            for one in witnesses:
                _end_after(NO_END_S)
                tell(one.name)
                if one.fails():
                    return
        tell("")

    told = list[str]()
    _in_a_child(look, told.append)
    # a child that is killed, or kills itself, has seen it as well
    return told[-1] if told else "its own birth"


def _end_after(seconds: float) -> None:
    """End this process after so long; a loop that never ends comes first, by the processor's time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds / 4)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _in_a_child(act: Callable[[Callable[[object], None]], None], hear: Callable[[Any], None]) -> int:
    """Do something in a process of its own that has what this one has; how it ended.

    Args:
        act: is given what tells this process something.
        hear: takes what it tells.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        status = 1
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with suppress(BaseException), os.fdopen(write, "w") as telling:
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            act(lambda line: print(json.dumps(line), file=telling, flush=True))
            status = 0
        os._exit(status)
    os.close(write)
    with os.fdopen(read) as heard:
        for line in heard:
            hear(json.loads(line))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def entry(value: float, unit: str) -> dict[str, Any]:
    """One figure; nobody else's stands beside it."""
    return {"value": value, "unit": unit, "peer": None, "ratio": None, "goal": "1.0", "command": COMMAND}


def _named_so(names: Collection[str]) -> list[ModuleType]:
    found = [home(name) for name in DECIDING]
    return [one for one in found if {one.__name__.rpartition(".")[2], one.__name__} & set(names)]


if __name__ == "__main__":
    if wanted := sys.argv[1:]:
        sys.exit(len(run(_named_so(wanted), named=False).survivors) > 0)
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
