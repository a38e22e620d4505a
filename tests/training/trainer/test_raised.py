"""An error of a user's code during a run gives one line with file and number, and the right status."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from gpu_fleet import Run
from gpu_fleet.core.files import may_pass
from tests.training.commands import tried_alone
from tests.training.ranks import run_ranks
from tests.training.trainer.test_mistakes import place, table_of, tried_in

__all__ = ["place"]  # a fixture
PLACES = {
    "model": "class model(nn.Linear):\n"
    "    def __init__(self):\n        super().__init__(4, 2)\n        self.calls = 0\n"
    "    def forward(self, batch):\n        self.calls += self.training\n"
    "        if self.calls > 5:\n            raise {error}\n        return super().forward(batch)",
    "loss": "calls = [0]\ndef own(model, batch):\n    calls[0] += model.training\n"
    "    if calls[0] > 5:\n        raise {error}\n    return loss(model, batch)",
    "data": "seen = []\nclass Rows(Rows):\n    def __getitem__(self, index):\n"
    "        seen.append(index)\n        if len(seen) > 200:\n            raise {error}\n"
    "        return super().__getitem__(index)",
    "reader": "import os\nhere = os.getpid()\nclass Rows(Rows):\n    def __getitem__(self, index):\n"
    "        if os.getpid() != here:\n            raise {error}\n        return super().__getitem__(index)",
}
KEYS: dict[str, dict[str, dict[str, Any]]] = {
    "model": {},
    "loss": {"loss": {"name": "mine.py:own"}, "data": {"workers": 1}},
    "data": {"data": {"workers": 0}},
    "reader": {"data": {"workers": 1}},
}
# what is raised -> (status, what is said of it)
RAISED = {
    "OSError(2, 'No such file or directory', 'a.png')": (65, "[Errno 2] No such file or directory: 'a.png'"),
    "PermissionError(13, 'Permission denied')": (65, "PermissionError: [Errno 13] Permission denied"),
    "OSError('not a picture')": (65, "OSError: not a picture"),
    "OSError(5, 'Input/output error')": (75, "OSError: [Errno 5] Input/output error"),
    "OSError(28, 'No space left on device')": (75, "OSError: [Errno 28] No space left on device"),
    "ConnectionResetError(104, 'reset')": (75, "ConnectionResetError: [Errno 104] reset"),
    "TimeoutError('no answer')": (75, "TimeoutError: no answer"),
    "MemoryError()": (65, "MemoryError: without a message"),
    "StopIteration": (65, "StopIteration"),
    "SystemExit(0)": (65, "SystemExit: 0"),
    "KeyError('price')": (65, "KeyError: 'price'"),
}


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    """Check that all reader processes have ended, although the frames of an error hold their iterators."""
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("where", "error"),
    [
        (where, error)
        for where in PLACES
        for error in RAISED
        if where in ("model", "reader") or error in ("OSError(5, 'Input/output error')", "SystemExit(0)")
    ],
)
def test_what_own_code_raises_is_one_line_with_its_place(where, error, place):
    status, message = RAISED[error]
    folder = place(PLACES[where].format(error=error))
    table = table_of(folder, {"run": {"steps": 40}, **KEYS[where]})

    ended, said = tried_alone(table, folder)

    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, said
    assert message in lines[0]
    assert "(mine.py:" in lines[0]
    assert "Traceback" not in said
    assert ended == status


def test_a_rank_whose_disk_fails_says_where_and_may_be_tried_again(place):
    """The other rank loses its peer, which may be retried too."""
    fails = PLACES["model"].format(error="OSError(5, 'Input/output error')")
    fails = fails.replace("if self.calls > 5:", "if self.calls > 5 and os.environ['RANK'] == '1':")
    folder = place("import os\n" + fails)

    (first, _), (second, said) = run_ranks(tried_in, 2, folder, table_of(folder, {"run": {"steps": 40}}))

    assert (first, second) == (75, 75)
    assert "error: rank 1: OSError: [Errno 5] Input/output error (mine.py:" in said


@pytest.mark.parametrize("key", ["name", "mean_over"])
def test_a_rank_whose_loss_or_count_is_none_says_so(key, place):
    folder = place(
        "import os\ncalls = [0]\ndef own(*given):\n    calls[0] += os.environ['RANK'] == '1'\n"
        "    return 'x' if calls[0] > 5 else loss(*given) if given[1:] else 16"
    )
    table = table_of(folder, {"loss": {"name": "mine.py:loss"} | {key: "mine.py:own"}})

    _, (status, said) = run_ranks(tried_in, 2, folder, table)

    assert status == 65
    assert f"error: rank 1: loss.{key} = 'mine.py:own': gave a str; expected: NAME(" in said


def test_a_reader_that_is_killed_may_be_tried_again(place):
    """A kernel without memory kills one so."""
    kills = PLACES["reader"].replace("raise {error}", "os.kill(os.getpid(), 9)")
    folder = place(kills)

    status, said = tried_alone(table_of(folder, {"data": {"workers": 1}}), folder)

    assert status == 75
    assert "error: a reader process of the data has ended: DataLoader worker (pid" in said
    assert "Traceback" not in said


def test_readers_end_with_a_loop_of_ones_own_though_its_batches_are_still_held(tmp_path):
    with Run(tmp_path / "run", model=nn.Linear(1, 1)) as run:
        batches = run.batches([*range(9)], batch_size=2, workers=1)
        next(batches)

    assert multiprocessing.active_children() == []


def raised_from(cause: Exception) -> Exception:
    """Return an error of a library for the web, with `cause` behind it."""

    class NoConnectionError(OSError):
        pass

    wrapped, pool = NoConnectionError("https://example.com"), LookupError("no pool")
    pool.__cause__, wrapped.__cause__ = cause, pool
    return wrapped


@pytest.mark.timeout(20)
def test_what_lies_behind_the_error_of_a_library_counts():
    missing = FileNotFoundError(2, "no such file")

    assert may_pass(raised_from(ConnectionRefusedError(111, "refused")))
    assert not may_pass(raised_from(missing))
    missing.__cause__ = missing  # as `raise error from error` leaves it
    assert not may_pass(missing)
