"""Each guard of the reaper broken by name, and each condition on the way of a verdict negated by machine.

Who may see it are all plays, on both clouds, and the quick tests of the reaper's rooms. First one run of the
whole product tells which of them evaluates which condition: nobody else can see it negated. Then each
mutant lives in a process of its own, forked from one that has everything imported and every test collected,
and is shown to those who evaluate it until one fails: who saw it the last time, then who saw others in the
same function, then the quickest. Who evaluates what (``build/reaper_witnesses.json``) and who saw what
(``build/reaper_shown.json``) are kept with a stamp of what that depends on: the product, what the tests
share, and the file of that test. Where the stamp is the same, neither is run again: a hunt that was cut off
goes on from there, and one after a new test shows what survived, and no more.

A survivor must be explained in ``survivors.toml``, beside ``mutants.py``: it changes nothing. An explanation
of what is seen, or is no mutant any more, is wrong as well. ``python -m tests.bench.bench_reaper_mutants
verdict answers`` negates in these modules alone, and gives no figure.
"""

import gc
import hashlib
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings
from rich.console import Console

from gpu_fleet_image.core.calls import batches
from tests.bench import entries
from tests.image.controllers.sweep.findings import FINDINGS, Finding
from tests.image.controllers.sweep.mutants import TESTS, Mutant, broken, explained, home, negations, probe
from tests.image.controllers.sweep.test_mutants import CASES, NAMED, Guard
from tests.image.plays import CLOUDS, PLAYS, perform

ROOT = Path(__file__).resolve().parents[2]
EVALUATED = ROOT / "build" / "reaper_witnesses.json"
SHOWN = ROOT / "build" / "reaper_shown.json"
SOURCES = ("image", "stacks", "tests")  # what a play or a test of the reaper may read
IMPORTED = re.compile(r"^from tests\.([\w.]+\.test_\w+) import", re.MULTILINE)
entry = partial(entries.entry, command="python -m tests.bench.bench_reaper_mutants")
# A function of each module on the way of a verdict, wherever it lies.
DECIDING = (
    "parse_time",
    "mark_of",
    "assess",
    "observe",
    "next_act",
    "NoticeListener.poll",
    "Exchange.claim",
    "_Batch.end",
    "_Sweep.act",
    "Lease.renew",
    "due_alerts",
    "activity",
    "Drain.run",
    "Store.replace",
    "OssStore.replace",
    "FromMetadata.mark",
    "aws:Instances.fleet",
    "alicloud:Instances.fleet",
    "aws:OrphanedResources.find",
    "alicloud:OrphanedResources.find",
    "alicloud:Hook.complete",
    "_judge_one",
    "aws:Heartbeats.read",
    "alicloud:Heartbeats.read",
    "bisect",
    "Habits.marked",
    "Inventory.group_of",
    "agent:is_unfit",
    "whole_instance",
    "ProcessTable.read",
    "decide",
    "kept_by_minimum",
    "past_lifetime",
    "AgentReleases.note",
    "Watch.note",
)
NO_WITNESSES = (
    # they break the product themselves, or look at processes of their own, which no mutant reaches
    *("test_mutants", "test_agent_process", "test_real_programs", "test_readme", "test_custodian_cases"),
    # what they see, they see by chance, and late
    *("test_faults", "test_spending_faults"),
)
WITNESS_MAY_TAKE_S = 4.0  # of the processor's time
EXAMPLES = 25  # of a property; the tests themselves try more
NO_END_S = 120.0  # a computer that does much else is slow, and that is no answer
LOOPS_S = 15.0  # of the processor's time
REPORT_EVERY = 200
SAY = Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print

Entries = dict[str, dict[str, Any]]


class Witness(NamedTuple):
    """A play or a test; it performs, and says whether anything goes wrong."""

    name: str  # of a test its id, of a play that and its cloud
    fails: Callable[[], bool]


class Evaluated(NamedTuple):
    """What one witness came across in the whole product, and the stamp of what it depends on."""

    stamp: str
    fails: bool  # on the whole product; it sees nothing then
    seconds: float  # of the processor's time
    conditions: Collection[str]  # names of their negations

    @property
    def may_see(self) -> bool:
        return not self.fails and self.seconds <= WITNESS_MAY_TAKE_S


class Hunt:
    """A plugin of pytest: lets it collect the tests, and goes on by itself.

    Args:
        modules: whose conditions are negated.
        named: whether the guards that have names are broken as well; who is seen by no play is missed.
    """

    def __init__(self, modules: Sequence[ModuleType], *, named: bool) -> None:
        self._modules, self._named = modules, named
        self._keen = dict[str, list[str]]()
        self._shown = Shown()
        self.made, self.survivors, self.missed = 0, list[str](), list[str]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In the place of running the tests."""
        gc.freeze()
        if self._modules:
            chosen = [item for item in session.items if Path(item.path).stem not in NO_WITNESSES]
            witnesses = {play.name: play for play in (*_plays(), *map(_test, chosen))}
            self._hunt(witnesses, _evaluated(list(witnesses.values()), self._shown.stamps))
        if self._named:
            self.missed = [
                f"{guard.text} on {cloud}" for guard, cloud in CASES if not self._named_is_seen(guard, cloud)
            ]
            self.missed += [
                finding.was for finding in FINDINGS if not self._is_seen_to_come_back(finding, session.items)
            ]
            SAY(f"{len(CASES)} named mutants, {len(FINDINGS)} findings, missed: {self.missed}")
        return True

    def _hunt(self, witnesses: Mapping[str, Witness], evaluated: Mapping[str, Evaluated]) -> None:
        for module in self._modules:
            mutants, began_s, before = list(negations(module)), _spent_s(), len(self.survivors)
            for mutant in mutants:
                names = self._order(mutant, evaluated)
                if not self._is_seen(mutant, [witnesses[name] for name in names]):
                    self.survivors.append(mutant.name)
                    reason = explained().get(mutant.name, "no reason is given")
                    SAY(f"SURVIVES {len(names)} that evaluate it: {mutant.name} ({reason})")
            self.made += len(mutants)
            left, spent_s = len(self.survivors) - before, _spent_s() - began_s
            SAY(f"{module.__name__}: {len(mutants)} negations, {left} left, {spent_s:.0f} s of CPU")

    def _named_is_seen(self, guard: Guard, cloud: str) -> bool:
        mutant, seen_by = broken(guard.text), f"{cloud}: {guard.play}"
        if self._shown.seen_by(what := f"{guard.play} on {cloud}: {mutant.name}") != seen_by:
            witness = Witness(guard.play, partial(_goes_wrong, guard.play, cloud))
            seen = bool(first_to_fail([mutant], [witness]))
            self._shown.note(what, seen_by if seen else "")
        return bool(self._shown.seen_by(what))

    def _is_seen_to_come_back(self, finding: Finding, items: Iterable[pytest.Item]) -> bool:
        mutants = [broken(text) for text in finding.broken]
        what = f"{finding.was}: {', '.join(mutant.name for mutant in mutants)}"
        if not finding.is_seen_by(self._shown.seen_by(what)):
            tests = [_test(item) for item in items if finding.is_seen_by(item.nodeid)]
            assert tests, f"there is no {finding.node}"
            assert not (failed := first_to_fail([], tests)), f"on the whole product: {failed}"
            self._shown.note(what, first_to_fail(mutants, tests))
        return bool(self._shown.seen_by(what))

    def _order(self, mutant: Mutant, evaluated: Mapping[str, Evaluated]) -> list[str]:
        """Who may see a mutant, the likeliest first."""
        names = [
            name for name, value in evaluated.items() if value.may_see and mutant.name in value.conditions
        ]
        last, keen = self._shown.last(mutant.name), self._keen.get(_function_of(mutant), [])
        return sorted(names, key=lambda name: (name != last, name not in keen, evaluated[name].seconds))

    def _is_seen(self, mutant: Mutant, witnesses: Sequence[Witness]) -> bool:
        seen = self._shown.seen_by(mutant.name) or first_to_fail([mutant], witnesses)
        self._shown.note(mutant.name, seen)
        if seen:
            self._keen.setdefault(_function_of(mutant), []).append(seen)
        return bool(seen)


class Stamps:
    """What the answer of a witness depends on, in a digest: another one where anything differs.

    The product, what tests share, and of the files of tests those that other tests import and its own.
    """

    def __init__(self) -> None:
        files = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file())
        whole = {
            str(file.relative_to(ROOT)): file.read_bytes()
            for file in files
            if not {"__pycache__", "bench"} & set(file.parts)
        }
        self._own = {name: hashlib.sha256(content).hexdigest() for name, content in whole.items()}
        texts = [content.decode() for name, content in whole.items() if name.startswith(TESTS)]
        imported = {match for text in texts for match in IMPORTED.findall(text)}
        shared = {f"tests/{module.replace('.', '/')}.py" for module in imported}
        lines = [
            f"{name} {digest}"
            for name, digest in self._own.items()
            if name in shared or not Path(name).name.startswith("test_")
        ]
        self._base = hashlib.sha256("\n".join([*lines, *DECIDING]).encode()).hexdigest()

    def of(self, witness: str) -> str:
        own = self._own.get(witness.partition("::")[0], "")
        return hashlib.sha256(f"{self._base} {own}".encode()).hexdigest()


class Shown:
    """Which mutants were seen already, by whom, and whether that still holds by the stamps of this tree."""

    def __init__(self) -> None:
        self.stamps = Stamps()
        self._seen: dict[str, list[str]] = _kept(SHOWN)

    def last(self, mutant: str) -> str:
        """Who saw a mutant the last time, in any tree."""
        return self._seen.get(mutant, [""])[0]

    def seen_by(self, mutant: str) -> str:
        witness, stamp = self._seen.get(mutant, ["", ""])
        return witness if stamp == self.stamps.of(witness) else ""

    def note(self, mutant: str, witness: str) -> None:
        self._seen[mutant] = [witness, self.stamps.of(witness)]
        SHOWN.parent.mkdir(exist_ok=True)
        SHOWN.write_text(json.dumps(self._seen, indent=0))


def _kept(file: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return kept


def _spent_s() -> float:
    return sum(os.times()[:4])


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
    share = (counted - len(unexplained)) / counted
    return {"reaper_mutants_caught": entry(share, unit, None, "1.0")}


def run(modules: Sequence[ModuleType], *, named: bool) -> Hunt:
    hunt = Hunt(modules, named=named)
    # pytest-timeout takes the same signal
    quiet = ["-q", "-s", "-p", "no:cacheprovider", "--no-header", "--no-summary", "-o", "timeout=0"]
    chosen = ["-m", "not image and not libraries", *TESTS]
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


def _function_of(mutant: Mutant) -> str:
    return ": ".join(mutant.name.split(": ")[:2])


def _evaluated(witnesses: Sequence[Witness], stamps: Stamps) -> dict[str, Evaluated]:
    """What each witness evaluates in all modules, looked at anew where what it depends on changed since."""
    kept = {name: Evaluated(*row) for name, row in _kept(EVALUATED).items()}
    found = {
        name: one._replace(conditions=frozenset(one.conditions))
        for name, one in kept.items()
        if one.stamp == stamps.of(name)
    }
    new = [witness for witness in witnesses if witness.name not in found]
    for few in batches(new, REPORT_EVERY):
        found |= _survey(few, [home(name) for name in DECIDING], stamps)
        EVALUATED.parent.mkdir(exist_ok=True)
        listed = {name: one._replace(conditions=sorted(one.conditions)) for name, one in found.items()}
        EVALUATED.write_text(json.dumps(listed))
        SAY(f"{len(found)} of {len(witnesses)} plays and tests looked at")
    taken = {witness.name: found[witness.name] for witness in witnesses}
    # who fails anyway sees nothing; without its witness fewer mutants are caught, never more
    if failed := [name for name, value in taken.items() if value.fails]:
        SAY(f"NO WITNESSES, for they fail on the whole product: {failed}")
    slow = sum(not witness.fails and not witness.may_see for witness in taken.values())
    SAY(f"{len(taken)} plays and tests; {slow} take more than {WITNESS_MAY_TAKE_S} s, and are left out")
    return taken


def _survey(
    witnesses: Sequence[Witness], modules: Sequence[ModuleType], stamps: Stamps
) -> dict[str, Evaluated]:
    """What each witness evaluates.

    Raises:
        AssertionError: one ended the process.
    """

    def look(report: Callable[[object], None]) -> None:
        conditions = set[str]()
        probe(modules, conditions.update)
        for witness in witnesses:
            conditions.clear()
            began = time.process_time()
            failed = witness.fails()
            report([witness.name, failed, time.process_time() - began, sorted(conditions)])

    reported = list[Any]()
    status = _in_a_child(look, reported.append)
    assert (status, len(reported)) == (0, len(witnesses)), (
        f"the survey ended with {status} after {reported[-1:]}"
    )
    return {
        name: Evaluated(stamps.of(name), failed, seconds, frozenset(conditions))
        for name, failed, seconds, conditions in reported
    }


def first_to_fail(mutants: Iterable[Mutant], witnesses: Iterable[Witness]) -> str:
    """The first witness that sees what these mutants do together, or an empty text."""

    def look(report: Callable[[object], None]) -> None:
        with ExitStack() as alive:
            for mutant in mutants:
                alive.enter_context(mutant.alive())
            for witness in witnesses:
                _end_after(NO_END_S)
                report(witness.name)
                if witness.fails():
                    return
        report("")

    reported = list[str]()
    _in_a_child(look, reported.append)
    # a child that is killed, or kills itself, has seen it as well
    return reported[-1] if reported else "its own birth"


def _end_after(seconds: float) -> None:
    """End this process after so long; a loop that never ends comes first, by the processor's time."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, LOOPS_S)
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


def _named_so(names: Collection[str]) -> list[ModuleType]:
    found = [home(name) for name in DECIDING]
    return [
        witness for witness in found if {witness.__name__.rpartition(".")[2], witness.__name__} & set(names)
    ]


if __name__ == "__main__":
    if wanted := sys.argv[1:]:
        sys.exit(len(run(_named_so(wanted), named=False).survivors) > 0)
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
