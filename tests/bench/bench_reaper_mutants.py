"""Each guard of the reaper broken by name, and each condition of its decisions negated by machine.

The plays that come through the broken function look first, in this process. What they miss, the tests beside
the module look for, each mutant in a process of its own that has everything imported. A survivor must be
explained in ``tests/reaper/survivors.toml``: it changes nothing. An explanation of what is caught, or is no
mutant any more, is wrong as well. ``python -m tests.bench.bench_reaper_mutants verdict answers`` negates in
these modules alone, and gives no figure.
"""

import contextlib
import io
import json
import logging
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from tempfile import TemporaryFile
from types import CodeType
from typing import Any

import pytest
from rich.console import Console

from tests.reaper.mutants import Mutant, explained, home, negations
from tests.reaper.plays import PLAYS, perform
from tests.reaper.sweeping import server
from tests.reaper.test_mutants import CASES, NAMED

COMMAND = "python -m tests.bench.bench_reaper_mutants"
# A function of each module that decides -> the tests beside that module, the quick ones first.
DECIDING = {
    "is_quiet": ("test_times",),
    "mark_of": ("test_verdicts",),
    "assess": ("test_verdicts", "test_unfit"),
    "observe": ("test_verdicts",),
    "next_act": ("test_answers", "test_listening"),
    "Going.look": ("test_listening",),
    "Exchange.claim": ("test_verdicts", "test_listening", "test_keep"),
    "_Batch.end": ("test_acting",),
    "_Sweep.look_and_act": ("test_acting", "test_watch", "test_sweep_on_moto"),
    "Lease.renew": ("test_lease",),
    "due_alerts": ("test_notify", "test_acting"),
    "OssStore.replace": ("test_alicloud",),
}
PLAY_MAY_TAKE_S, TESTS_MAY_TAKE_S = 2, 240
SAY = Console(stderr=True, soft_wrap=True, highlight=False).print

Entries = dict[str, dict[str, Any]]


class TooLongError(BaseException):
    """A mutant that never comes to an end, which is seen, too; nothing of the product may catch it."""


def measure() -> Entries:
    """Everything, in one run.

    Raises:
        AssertionError: a mutant is missed, or an explanation is of none that survives.
    """
    missed = [f"{name} on {cloud}" for name, cloud in CASES if not seen_by_its_play(name, cloud)]
    SAY(f"{len(CASES)} named mutants, missed: {missed}")
    made, survivors = hunt(DECIDING)
    names, reasons = {one.name for one in survivors}, explained()
    stale = sorted(reasons.keys() - names)
    assert not stale, f"explained, and no survivors: {stale}"
    unexplained = sorted(names - reasons.keys()) + missed
    assert not unexplained, f"survivors without a reason: {unexplained}"
    counted = len(CASES) + made - len(reasons)
    unit = (
        f"of {counted}: {len(NAMED)} named in {len(CASES)} plays, {made} negations; "
        f"not counted are {len(reasons)} that change nothing"
    )
    return {"reaper_mutants_caught": entry(1.0, unit)}


def hunt(deciding: Iterable[str]) -> tuple[int, list[Mutant]]:
    """Negate each condition of the modules of these functions; how many mutants, and which survive."""
    made, survivors = 0, list[Mutant]()
    for name in deciding:
        module, tests = home(name), DECIDING[name]
        assert not (failed := seen_by_tests(tests)), f"on the whole product: {failed}"
        mutants = list(negations(module))
        SAY(f"{module.__name__}: {len(mutants)} negations")
        for one in mutants:
            if seen_by_plays(one, "aws"):
                continue
            # a play on Alibaba Cloud takes as long as many tests
            seen = seen_by_tests(tests, one) or ("a play" if seen_by_plays(one, "alicloud") else "")
            SAY(f"{one.name}: {seen or 'SURVIVES: ' + explained().get(one.name, '')}", markup=False)
            survivors += [] if seen else [one]
        made += len(mutants)
    return made, survivors


def seen_by_its_play(name: str, cloud: str) -> bool:
    """Whether a named mutant is caught by the play that is for it."""
    make, play, _ = NAMED[name]
    with make().alive():
        return _goes_wrong(play, cloud)


def seen_by_plays(mutant: Mutant, cloud: str) -> bool:
    """Whether any play goes wrong that comes through the broken function."""
    plays = reaching(cloud).get(mutant.function.__code__, [])
    with mutant.alive():
        return any(_goes_wrong(play, cloud) for play in plays)


@cache
def reaching(cloud: str) -> dict[CodeType, list[str]]:
    """Which plays come through a function of the whole product.

    Raises:
        AssertionError: a play goes wrong with it.
    """
    found: dict[CodeType, list[str]] = defaultdict(list)
    for play in PLAYS:
        called = set[CodeType]()
        sys.setprofile(lambda frame, *_, note=called.add: note(frame.f_code))
        wrong = _goes_wrong(play, cloud)
        sys.setprofile(None)
        assert not wrong, f"{play} on {cloud} goes wrong with the whole product"
        for code in called:
            found[code].append(play)
    return found


def _goes_wrong(play: str, cloud: str) -> bool:
    signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, PLAY_MAY_TAKE_S)  # of the processor's time
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return perform(play, cloud) != []
    except (Exception, TooLongError):  # noqa: BLE001 - a broken product may fail in any way, and is seen then
        return True
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _ring(*_: object) -> None:
    raise TooLongError


def seen_by_tests(tests: Collection[str], mutant: Mutant | None = None) -> str:
    """The first of these tests that fails, in a child process; of the whole product without a mutant."""
    with TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(TESTS_MAY_TAKE_S)
            server.cache_clear()
            logging.disable(logging.NOTSET)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            with mutant.alive() if mutant else contextlib.nullcontext():
                files = [f"tests/reaper/{name}.py" for name in tests]
                os._exit(int(pytest.main(["-x", "-q", "--tb=no", "-p", "no:cacheprovider", *files])))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        lines = output.read().splitlines()
    if status == -signal.SIGALRM:
        return f"no end in {TESTS_MAY_TAKE_S} s"
    # the rest say that pytest itself was not asked well
    assert status in {0, 1, 2}, f"pytest ended with {status}: {lines[-5:]}"
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    assert len(failed) == (status > 0), f"pytest ended with {status}: {lines[-5:]}"
    return failed[0] if failed else ""


def entry(value: float, unit: str) -> dict[str, Any]:
    """One figure; nobody else's stands beside it."""
    return {"value": value, "unit": unit, "peer": None, "ratio": None, "goal": "1.0", "command": COMMAND}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if wanted := sys.argv[1:]:
        sys.exit(len(hunt(one for one in DECIDING if home(one).__name__.rpartition(".")[2] in wanted)[1]) > 0)
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")
