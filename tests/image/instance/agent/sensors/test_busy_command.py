"""``idle.command``: its exit code counts, it has no rights, and only root may change it.

The test plays systemd's part: it runs the program that the unit starts, as another account, and the one
that records its end. ``tests/image/recipe/test_units_under_systemd.py`` has the unit itself.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent.sensors.busy_command import BUSY, NOT_BUSY, BusyCommand
from gpu_fleet_image.instance.agent.sensors.poll import SensorOptions, Sensors
from gpu_fleet_image.instance.agent.sensors.reading import Presence, Rates
from gpu_fleet_image.recipe.payload import PROJECT
from tests.image.samples import NOON, reads
from tests.ran import executable, ran

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a program as somebody else")


# as the unit has it; stopped, all that it began is killed
SYSTEMCTL = """#!/bin/bash
case "$1" in
start)
    # its number is written before the program runs, which the test may have stopped at once
    setsid bash -c 'echo $$ >{folder}/pid
        exec setpriv --reuid nobody --regid nogroup --clear-groups env {run_dir} bash {idle_command} ask' \\
        >/dev/null 2>&1 &
    wait $!
    code=$? how=exited
    [ $code -le 128 ] || how=killed
    env {run_dir} EXIT_CODE=$how EXIT_STATUS=$code bash {idle_command} answer
    ;;
stop) kill -9 -- "-$(<{folder}/pid)" ;;
esac
"""
IDLE_COMMAND = PROJECT / "image/gpu_fleet_image/recipe/rootfs/usr/libexec/gpu-fleet/idle-command"


@pytest.fixture(autouse=True)
def systemd(monkeypatch):
    """Fake a systemctl that knows the unit; yield root's own folder, which others can enter."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "run").mkdir(mode=0o755)
        shutil.copy(IDLE_COMMAND, folder / "idle-command")
        given = {"run_dir": f"GPU_FLEET_RUN_DIR={folder}/run", "idle_command": folder / "idle-command"}
        executable(folder / "systemctl", SYSTEMCTL.format(folder=folder, **given))
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(folder / "run"))
        yield folder


@pytest.fixture
def program(systemd, monkeypatch):
    """Return a function that writes a program that only root can change, and everyone can run."""
    file, lstat = systemd / "program", Path.lstat
    # everybody may write to /tmp
    monkeypatch.setattr(Path, "lstat", lambda path: lstat(Path("/") if path in systemd.parents else path))

    def make(script):
        executable(file, f"#!/bin/sh\n{script}\n")
        return file

    return make


def command(file, timeout_s=60.0):
    return BusyCommand((str(file),), timeout_s)


def test_its_exit_code_says_busy_or_not_and_any_other_end_is_unknown(program, systemd):
    answers = [command(program(f"exit {code}")).is_busy() for code in (0, 1)]
    ends = {"exit 2": "exit code 2", "exit 127": "exit code 127", "kill -9 $$": "killed 137"}

    assert answers == [True, False]
    for script, ended in ends.items():
        with pytest.raises(SensorError, match=f"{ended}; exit code 0 says busy, 1 says not busy"):
            command(program(script)).is_busy()
    asked = command(program("exit 1"))
    assert not asked.is_busy()
    (systemd / "systemctl").write_text("#!/bin/sh\necho Unit not found. >&2\nexit 5\n")
    with pytest.raises(SensorError, match=r"Unit not found\."):
        asked.is_busy()


def test_what_cannot_be_started_says_neither(systemd):
    for content in (None, "", "/nowhere\0"):
        if content is not None:
            (systemd / "run/idle-command").write_text(content)

        done = ran(["bash", str(IDLE_COMMAND), "ask"])

        assert done.returncode not in (BUSY, NOT_BUSY)


def test_it_runs_with_its_arguments_as_they_are_without_rights_and_without_the_agents_environment(
    program, monkeypatch
):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "secret")
    arguments = '[ "$#" -eq 2 ] && [ "$1" = "a  b" ] && [ "$2" = "" ]'
    file = program(f'{arguments} && [ "$(id -u)" -ne 0 ] && [ -z "$AWS_SESSION_TOKEN" ] && ! cat /etc/shadow')

    assert BusyCommand((str(file), "a  b", ""), 60.0).is_busy()


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(program, systemd, monkeypatch):
    seconds, begun = f"613.{os.getpid()}", systemd / "begun"
    os.mkfifo(begun)
    begun.chmod(0o666)
    limit_s, communicate = 12.5, subprocess.Popen.communicate

    def time_is_over_once_it_runs(process, given=None, timeout=None):
        if timeout == limit_s:
            assert begun.read_text() == "begun\n"
        return communicate(process, given, 0.0 if timeout == limit_s else timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", time_is_over_once_it_runs)

    with pytest.raises(SensorError, match=r"no answer within 12.5 s"):
        command(program(f"sleep {seconds} & echo begun >{begun}; sleep {seconds}"), limit_s).is_busy()

    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", seconds]:
            process.wait(10)  # a kill of a group does not wait for all its processes


def test_what_others_than_root_can_change_or_is_not_there_is_not_run(program, systemd):
    file, shared, link = program("exit 1"), systemd / "shared", systemd / "link"
    shared.mkdir()
    link.symlink_to(file)
    copies = [Path(shutil.copy(file, place)) for place in (systemd / "group", systemd / "all", shared)]
    for path, mode in zip((*copies[:2], shared), (0o775, 0o757, 0o777), strict=True):
        path.chmod(mode)
    refused = {
        (file, "a\0b"): "a NUL in its arguments",
        (copies[0],): "group can be changed by users other than root",
        (copies[1],): "all can be changed by users other than root",
        (copies[2],): "shared can be changed by users other than root",
        (link,): "is a link; name the program itself",
        ("/usr/local/bin/none",): "/usr/local/bin/none: No such file",
    }

    for words, said in refused.items():
        with pytest.raises(SensorError, match=said):
            BusyCommand(tuple(map(str, words)), 60.0).is_busy()


def test_a_busy_command_is_activity_and_a_broken_one_a_failure(program):
    asked = [SensorOptions(command=command(program("exit 0")))]
    sensors = Sensors(reads(Rates()), reads(()), reads(Presence()), lambda: asked[0])

    assert sensors.poll(NOON).presence.watched == (f"{asked[0].command.command[0]} reports busy",)
    program("exit 3")
    assert "exit code 3" in sensors.poll(NOON).failures[0]
