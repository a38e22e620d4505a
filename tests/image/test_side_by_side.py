"""What shares minutes of set-up runs in one process of ``make boot``."""

import ast
from pathlib import Path
from types import SimpleNamespace

from tests.image.side_by_side import GROUPS, GroupScheduling

FOLDER = Path(__file__).parent
# A fixture of conftest.py that takes minutes -> the group of the modules that ask for it.
DEAR = {"baked": "baked", "root": "baked", "disk": "baked", "inside": "baked", "plain": "plain"}
ASKING = {
    file.name: {
        argument.arg
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for argument in function.args.args
    }
    for file in FOLDER.glob("test_*.py")
    if "pytest.mark.image" in file.read_text(encoding="utf-8") and file != Path(__file__)
}


def test_who_asks_for_a_dear_fixture_is_in_its_group():
    asking = [(module, fixture) for module in ASKING for fixture in ASKING[module] & {*DEAR}]

    assert asking
    assert [pair for pair in asking if GROUPS.get(pair[0]) != DEAR[pair[1]]] == []


def test_processes_take_whole_groups(pytestconfig):
    scheduler = pytestconfig.hook.pytest_xdist_make_scheduler(
        config=Dist("loadgroup"), log=SimpleNamespace(loadscopesched=None)
    )
    other = pytestconfig.hook.pytest_xdist_make_scheduler(
        config=Dist("worksteal"), log=SimpleNamespace(loadscopesched=None)
    )

    assert isinstance(scheduler, GroupScheduling)
    assert not isinstance(other, GroupScheduling)


class Dist:
    """What a scheduler asks of pytest's configuration."""

    def __init__(self, name):
        self.name = name

    def getvalue(self, key):
        return {"dist": self.name, "tx": ["2*popen"], "numprocesses": 2}[key]

    getoption = getvalue
