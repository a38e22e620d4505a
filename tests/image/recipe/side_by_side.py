"""Which modules of ``make boot`` and ``make prove-image`` run in one process, one after another.

``xdist_group`` would say so at each module, but pytest 9.2 hides it from xdist 3.8, which then spreads the
tests without a word (github.com/pytest-dev/pytest-xdist/issues/1386).
"""

from pathlib import Path, PurePath

from xdist.scheduler import LoadScopeScheduling

# What shares a fixture that takes minutes: the baked root file system, and the plain Debian that boots.
GROUPS = {
    "test_root_file_system.py": "baked",
    "test_boot.py": "baked",
    "test_container.py": "baked",
    "test_users_log_in.py": "baked",
    "test_first_boot_aws.py": "plain",
    "test_first_boot_alicloud.py": "plain",
}
assert all(Path(__file__).with_name(name).is_file() for name in GROUPS), "a module of GROUPS is gone"


def group_of(test: str) -> str:
    """The group of a test's module, by the test's id; a module of no group is one of its own."""
    module = test.partition("::")[0]
    return GROUPS.get(PurePath(module).name, module)


class GroupScheduling(LoadScopeScheduling):
    """Gives each process whole groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
