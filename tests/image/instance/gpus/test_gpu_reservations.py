"""`gpu-fleet gpu`: users of one instance share its GPUs by reservation, and each their own by MPS."""

import os
import re
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.instance.accounts import start_run
from gpu_fleet_image.instance.gpus import devices, mps, reservations_file
from gpu_fleet_image.instance.gpus.errors import GpuReservationError
from gpu_fleet_image.instance.gpus.reservations import GpuReservations, Reservation
from tests.image.instance.fake_nvml import FakeNvml
from tests.ran import executable, ran

ROOT = Path(__file__).parents[4]
ROOTFS = ROOT / "image/gpu_fleet_image/recipe/rootfs"
COMPILER = shutil.which("cc")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SOON = NOW + timedelta(hours=4)
FAR = datetime(2126, 1, 1, tzinfo=UTC)
FOUR = GpuReservations(("a", "b", "c", "d"))


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """An instance of four GPUs, as root of it sees them."""
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "instance.toml").touch()
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(run))
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))
    monkeypatch.setenv("GPU_FLEET_QUEUE_FILE", str(tmp_path / "queue.json"))
    nvml = FakeNvml(4)
    for index, gpu in enumerate(nvml.gpus):
        gpu.energy_mj = index  # or it would take one for another
    monkeypatch.setattr("gpu_fleet_image.instance.gpus.command.pynvml", nvml)
    return nvml


def call(*words, expect=0):
    shown = CliRunner().invoke(main, ["gpu", *words])
    assert shown.exit_code == expect, shown.output
    assert "Traceback" not in shown.output
    return shown.output


def test_a_user_gets_as_many_gpus_as_were_asked_for_until_the_time_is_over():
    reservations = FOUR.reserved("ada", 2, SOON)

    assert reservations.visible("ada") == ("a", "b")
    assert reservations.at(SOON - timedelta(seconds=1)) == reservations
    assert reservations.at(SOON).visible("ada") is None


def test_no_gpu_is_reserved_by_two():
    reservations = FOUR.reserved("ada", 2, SOON).reserved("bob", 2, SOON)

    assert reservations.visible("bob") == ("c", "d")
    said = r"1 GPU requested; 0 of 4 .*: ada has 2 until .*, bob has 2"
    with pytest.raises(GpuReservationError, match=said):
        reservations.reserved("eve", 1, SOON)


def test_who_reserves_again_keeps_the_same_gpus_and_gets_the_new_time():
    second = FOUR.reserved("bob", 1, SOON).reserved("ada", 1, SOON).without("bob")

    assert second.visible("ada") == ("b",)
    assert second.reserved("ada", 1, FAR).of("ada") == Reservation("ada", ("b",), FAR)
    assert second.reserved("ada", 2, FAR).visible("ada") == ("b", "a")


def test_gpus_that_were_cut_anew_are_free_while_their_old_names_stay_reserved():
    reservations = GpuReservations(("m1", "m2"), FOUR.reserved("ada", 4, SOON).reservations)

    assert reservations.reserved("bob", 2, SOON).visible("bob") == ("m1", "m2")


def test_everybody_reads_who_reserved_what_by_the_command(gpus):
    said = call("reserve", "2", "--for", "4h", "--account", "ada")

    listed = call("list").splitlines()
    assert said.startswith("ada has 2 GPUs until ")
    assert [line.split()[:2] for line in listed[1:]] == [
        *(["GPU-0", "ada"], ["GPU-1", "ada"], ["GPU-2", "free"], ["GPU-3", "free"]),
    ]
    assert (reservations_file.paths.gpus_file().stat().st_mode & 0o777) == 0o644


def test_what_is_released_is_free(gpus):
    call("reserve", "4", "--for", "1d", "--account", "ada")

    assert call("unreserve", "--account", "ada") == "ada has reserved no GPU any more\n"
    assert call("unreserve", "--account", "ada") == "ada had reserved no GPU\n"
    assert "GPU-3" in call("reserve", "4", "--for", "1d", "--account", "bob")


def test_a_reservation_that_is_over_is_not_listed_and_its_gpus_can_be_had(gpus):
    reservations_file.save(
        GpuReservations(("GPU-0",), (Reservation("ada", ("GPU-0", "GPU-1"), NOW - timedelta(days=900)),))
    )

    assert "ada" not in call("list")
    assert call("env") == "unset CUDA_VISIBLE_DEVICES\n"
    assert call("reserve", "4", "--for", "90m", "--account", "bob").startswith("bob has 4 GPUs")


def test_a_gpu_that_is_gone_is_listed_as_gone(gpus):
    reservations_file.save(GpuReservations((), (Reservation("ada", ("MIG-old",), FAR),)))

    assert "MIG-old (gone)" in call("list")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["5", "--for", "1h"], "5 GPUs requested; 4 of 4 are available"),
        (["1", "--for", "8d"], "--for 8d; allowed: 7d at most"),
        (["1", "--for", "soon"], "duration 'soon'; allowed"),
        (["1", "--for", "1h", "--account", "../x"], "--account '../x'; allowed"),
    ],
)
def test_what_cannot_be_reserved_is_one_message(gpus, words, message):
    assert f"error: {message}" in call("reserve", *words, expect=1)


def test_where_nothing_can_be_listed_or_reserved_that_is_one_message(gpus, tmp_path):
    (queue := tmp_path / "queue.json").touch()
    assert "this stack's queue shares the GPUs out" in call("reserve", "1", "--for", "1h", expect=1)
    gpus.fail("nvmlInit", gpus.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert "error: GPUs cannot be listed" in call("list", expect=1)
    reservations_file.paths.gpus_file().write_text("{")
    assert "gpus.json cannot be read" in call("list", expect=1)
    for file in (tmp_path / "instance.toml", queue):
        file.unlink()
    assert "reservations are made on an instance" in call("reserve", "1", "--for", "1h", expect=1)


def test_who_is_not_root_calls_the_one_program_that_sudo_allows(gpus, monkeypatch):
    called = []
    monkeypatch.setattr("gpu_fleet_image.instance.gpus.command._may_write", lambda: False)
    monkeypatch.setattr(os, "execvp", lambda program, words: called.append(" ".join(words)) or sys.exit(0))

    call("reserve", "2", "--for", "4h")

    assert called == ["sudo --non-interactive /usr/libexec/gpu-fleet/reserve-gpus reserve 2 4h"]
    assert "--account ada: for root alone" in call("unreserve", "--account", "ada", expect=1)


def test_sudo_lets_a_user_reserve_in_no_name_but_their_own(tmp_path):
    executable(tmp_path / "gpu-fleet", '#!/bin/sh\necho "$*"\n')
    text = (ROOTFS / "usr/libexec/gpu-fleet/reserve-gpus").read_text()
    helper = text.replace("/usr/local/bin/gpu-fleet", str(tmp_path / "gpu-fleet"))
    passed = {
        ("reserve", "2", "4h"): (0, "gpu reserve --account=ada --for=4h -- 2\n"),
        ("reserve", "--account=eve", "4h"): (0, "gpu reserve --account=ada --for=4h -- --account=eve\n"),
        ("unreserve",): (0, "gpu unreserve --account=ada\n"),
        ("unreserve", "--account=eve"): (2, ""),
        ("list",): (2, ""),
    }

    done = {words: ran(["bash", "-c", helper, "x", *words], env={"SUDO_USER": "ada"}) for words in passed}

    assert {words: (each.returncode, each.stdout) for words, each in done.items()} == passed


@pytest.fixture
def started(gpus, tmp_path, monkeypatch):
    """Starts a run of an account; gives what its unit reads, line by line."""
    for folder in ("etc", "home", "scratch"):
        (tmp_path / folder).mkdir()
    rows = [f"{name}:x:{os.geteuid()}:5001::/home/{name}:/bin/bash\n" for name in ("ada", "bob", "eve")]
    (tmp_path / "etc/passwd").write_text("".join(rows))
    for file in ("etc/group", "etc/shadow", "run/ready"):
        (tmp_path / file).touch()
    monkeypatch.setattr(start_run, "allowed", lambda account, accounts: os.geteuid())
    monkeypatch.setattr(start_run, "_systemctl", lambda *words, may_fail=False: "")

    def start(account):
        start_run.start(start_run.Order(account, "digits-20261123-120000", "0" * 64), tmp_path)
        return (tmp_path / f"run/runs/{account}.env").read_text().splitlines()

    return start


def test_a_submitted_run_sees_what_its_account_reserved_and_every_gpu_where_none_is(started):
    assert not [line for line in started("ada") if "CUDA" in line]

    call("reserve", "2", "--for", "4h", "--account", "ada")

    assert "CUDA_VISIBLE_DEVICES=GPU-0,GPU-1" in started("ada")
    assert "CUDA_VISIBLE_DEVICES=GPU-2,GPU-3" in started("bob")
    call("reserve", "4", "--for", "4h", "--account", "ada")
    with pytest.raises(start_run.NotStartedError, match="all GPUs are reserved"):
        started("eve")


def test_users_together_get_no_more_memory_than_each_of_them():
    """Or two of them could take what is left for the agent."""
    limits = [
        re.search(r"^MemoryMax=(\d+)%$", file.read_text(), re.MULTILINE)[1]
        for file in sorted((ROOTFS / "etc/systemd/system").glob("user*.slice.d/*.conf"))
    ]

    assert len(limits) == 2
    assert len(set(limits)) == 1


def test_the_instances_of_a_gpu_that_is_cut_are_reserved_one_by_one():
    class Cut(FakeNvml):
        """The second of two GPUs has MIG on and no instance, the first none at all."""

        def nvmlDeviceGetMigMode(self, gpu):  # noqa: N802
            return (self.NVML_DEVICE_MIG_ENABLE if gpu is self.gpus[1] else 0), 0

        def nvmlDeviceGetMaxMigDeviceCount(self, gpu):  # noqa: N802
            return 0

    assert devices.listed(Cut(2)) == ("GPU-0",)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to make a libnvidia-ml.so.1 with")
def test_a_log_in_shell_sees_what_its_user_reserved_through_nvidias_own_binding(gpus, tmp_path):
    """The real command and the instance's own file of /etc/profile.d; GPU 1 of the library is cut in two."""
    source = ROOT / "tests/image/instance/agent/sensors/fake_nvml.c"
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", library, str(source)], check=True)
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "image")}
    environment.pop("SUDO_USER", None)
    command = tmp_path / "gpu-fleet"
    executable(command, f'#!/bin/sh\nexec {sys.executable} -m gpu_fleet_image.console "$@"\n')
    executable(tmp_path / "id", "#!/bin/sh\necho 5001\n")
    profile = (ROOTFS / "etc/profile.d/gpu-fleet-gpus.sh").read_text()
    profile = profile.replace("/usr/local/bin/gpu-fleet", str(command))
    profile = profile.replace("/run/gpu-fleet/", f"{tmp_path}/run/")
    shell = ["bash", "-c", f'PATH={tmp_path}:$PATH\n{profile}\necho "${{CUDA_VISIBLE_DEVICES-every one}}"']

    def output(*words):
        return ran(words, env=environment, check=True, cwd=tmp_path).stdout

    assert output(*shell) == "every one\n"
    output(command, "gpu", "reserve", "1", "--for", "1h", "--account", "ada")
    assert output(*shell) == "MIG-first,MIG-second\n"
    output(command, "gpu", "reserve", "1", "--for", "1h")
    assert output(*shell) == "MIG-first\n"
    assert [line.split()[0] for line in output(command, "gpu", "list").splitlines()[1:]] == [
        *("GPU-whole", "MIG-first", "MIG-second"),
    ]


# a daemon of one's own over one's reserved GPUs, and nobody else's

# Keeps what it was asked, with its GPUs; a daemon runs as long as a file of it lies in its folder.
CONTROL = """#!/bin/sh
echo "$* gpus=$CUDA_VISIBLE_DEVICES" >> "$CALLS"
if [ "$1" = -d ]; then touch "$CUDA_MPS_PIPE_DIRECTORY/control"; exit; fi
read -r said
[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
[ "$said" != quit ] || rm "$CUDA_MPS_PIPE_DIRECTORY/control"
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """An instance with NVIDIA's program, as a user in their home sees it; the program's calls."""
    for name in ("run", "home", "memory", "bin"):
        (tmp_path / name).mkdir()
    program = tmp_path / "bin" / mps.PROGRAM
    executable(program, CONTROL)
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(mps, "IN_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(mps, "account_of", lambda _: "ada")
    return tmp_path / "calls"


def reserve(account):
    reservations_file.save(GpuReservations(("a", "b", "c"), (Reservation(account, ("a", "b"), FAR),)))


def folder_of(said):
    return Path(said.partition("CUDA_MPS_PIPE_DIRECTORY=")[2].split()[0])


def test_a_user_starts_one_over_the_gpus_that_they_reserved_in_a_folder_of_their_own(calls):
    reserve("ada")

    said = call("mps", "start")

    assert calls.read_text() == "-d gpus=a,b\n"
    assert stat.S_IMODE(folder_of(said).stat().st_mode) == 0o700
    assert call("mps", "start") == call("mps", "env") == said
    assert calls.read_text().count("-d ") == 1


def test_who_reserved_nothing_starts_none(calls):
    reserve("bob")

    assert "ada has reserved no GPU: first gpu-fleet gpu reserve" in call("mps", "start", expect=1)
    assert not calls.exists()


def test_what_is_stopped_runs_no_more_and_can_be_started_anew(calls):
    reserve("ada")
    first = call("mps", "start")

    assert "MPS is stopped" in call("mps", "stop")
    assert "MPS was not running" in call("mps", "stop")
    assert "MPS is not running: gpu-fleet gpu mps start" in call("mps", "env", expect=1)
    second = folder_of(call("mps", "start"))
    assert second != folder_of(first)
    (second / "control").unlink()  # it is gone by itself
    call("mps", "start")
    assert calls.read_text().count("-d ") == 3


def test_an_instance_without_nvidias_program_is_one_message(calls, monkeypatch):
    reserve("ada")
    monkeypatch.setattr(mps, "PROGRAM", "nvidia-cuda-mps-control-of-no-computer")

    assert "nvidia-cuda-mps-control-of-no-computer: " in call("mps", "start", expect=1)
