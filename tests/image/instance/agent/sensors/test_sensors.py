"""Sensors on this computer: real processes, real files, and counters that a test changes."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gpu_fleet_image.core.model import Tie
from gpu_fleet_image.core.reaper_errors import ConfigurationError, SensorError
from gpu_fleet_image.instance.agent.sensors import processes
from gpu_fleet_image.instance.agent.sensors.counters import (
    Counters,
    InstanceCounters,
    OwnUse,
    RateSensor,
    TreeCounters,
)
from gpu_fleet_image.instance.agent.sensors.gpu import GpuSensor
from gpu_fleet_image.instance.agent.sensors.poll import Sensors
from gpu_fleet_image.instance.agent.sensors.processes import Process, ProcessTable, _Used
from gpu_fleet_image.instance.agent.sensors.reading import Presence, ProcessUse, Rates
from tests.image.instance.fake_nvml import FakeNvml
from tests.image.programs import at_a_terminal, running, until
from tests.image.samples import NOON, reads

PIPES = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE}
# Each says so once its start is over. This one waits in a read then, the other computes when it is asked to.
WAITING = "import sys\nprint(1, flush=True)\nsys.stdin.read()"
COMPUTING = """
import sys, time
print(1, flush=True)
sys.stdin.readline()
end = time.process_time() + 0.15
while time.process_time() < end:
    pass
print(2, flush=True)
sys.stdin.read()
"""
LOST = SensorError("NVML_ERROR_GPU_IS_LOST")


@contextmanager
def started(code, *words, **options):
    """Start a Python program that is connected to the test by its input and output."""
    with running(sys.executable, "-S", "-c", code, *words, **(PIPES | options)) as process:
        process.stdout.readline()
        yield process


def let_compute(process):
    """Wait until a process has computed for 0.15 s."""
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"2\n"


def burn_cpu(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_agents_own_use_is_that_of_our_slice_where_the_kernel_counts_one(tmp_path):
    """The use of our other units is no user's work either."""
    stat = tmp_path / "gpu-fleet.slice" / "cpu.stat"
    stat.parent.mkdir()
    stat.write_text("usage_usec 999000000\nuser_usec 2000000\nsystem_usec 500000\n")
    unit = "/gpu-fleet.slice/gpu-reaper.service"
    others = ["", "/", "/user.slice/user-1000.slice/gpu-fleet.slice/x", "/system.slice"]

    assert OwnUse(unit, tmp_path).cpu_s() == 999.0
    assert 0 < OwnUse(unit, tmp_path / "none").cpu_s() < 900
    assert [cgroup for cgroup in others if OwnUse(cgroup, tmp_path).cpu_s() > 900] == []


# (seconds, counters, whether it leaves no trace, rates)
LOOKS = [
    (0.0, Counters(10, 1e6, 1e3), False, Rates()),
    (5.0, Counters(12.5, 6e6, 2e3), False, Rates(0.5, 1e6, 200.0)),
    (5.01, Counters(19, 9e6, 9e3), False, Rates(0.5, 1e6, 200.0)),  # at once: the same
    (10.0, Counters(12, 0, 3e3), False, Rates(0.0, 0.0, 200.0)),  # two counters began anew
    (11.0, Counters(12.5, 102_400, 3e3), True, Rates(0.1, 20_480.0, 0.0)),  # a burst is no rate
    (16.0, Counters(18, 0, 3e3), True, Rates(1.0, 0.0, 0.0)),
    (18.0, Counters(20, 0, 3e3), False, Rates(1.0, 0.0, 0.0)),  # since the look at 10.0
]


def test_rates_are_means_over_real_time_since_the_last_look_that_left_a_trace():
    now = [LOOKS[0]]
    sensor = RateSensor(lambda: now[0][1], lambda: now[0][0])
    rates = []

    for now[0] in LOOKS:
        rates.append(sensor.read(keep=now[0][2]))

    assert rates == [look[3] for look in LOOKS]


def test_counters_that_cannot_be_read_are_a_failure_that_says_why():
    def broken():
        raise FileNotFoundError(2, "No such file", "/proc/stat")

    with pytest.raises(SensorError, match=r"counters of CPU, disk and network: .*/proc/stat"):
        RateSensor(broken, time.monotonic).read()


def test_cpu_time_and_files_of_any_process_and_its_children_count_but_not_those_of_the_agent(tmp_path):
    own = OwnUse()
    whole = InstanceCounters(own)
    before, own_before = whole(), own.cpu_s()
    burn_cpu(0.2)
    own_s = own.cpu_s() - own_before
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
    writing = f"open({str(tmp_path / 'x')!r}, 'wb').write(bytes(2**22))\nprint(2"

    # one that this process has waited for would be its own
    with started(child, COMPUTING.replace("print(2", writing)) as process:
        tree = TreeCounters(process.pid)
        before_of_tree = tree()
        let_compute(process)

        of_tree = tree()
        assert whole().cpu_s - before.cpu_s >= 0.1
        assert of_tree.cpu_s - before_of_tree.cpu_s >= 0.1
        assert of_tree.disk_bytes - before_of_tree.disk_bytes >= 2**22
        assert len(tree.pids()) == 2
    assert own_s >= 0.15


def test_the_network_counts_but_for_the_loopback_and_while_the_agent_copies(monkeypatch):
    sent = [0]
    cards = lambda **_: {  # noqa: E731 - one expression
        "eth0": SimpleNamespace(bytes_recv=0, bytes_sent=sent[0]),
        "lo": SimpleNamespace(bytes_recv=10**9, bytes_sent=10**9),
    }
    monkeypatch.setattr(psutil, "net_io_counters", cards)
    own = OwnUse()
    counters = InstanceCounters(own, Path("/nowhere"))

    def after(more):
        sent[0] += more
        return counters().network_bytes

    quiet = [after(100), after(200)]
    with own.copying():
        copying = after(10**9)
    ended = [after(10**9), after(50)]
    with own.copying():
        pass  # a copy between two looks is not missed

    assert (quiet, copying, ended, after(10**9)) == ([100, 300], 300, [300, 350], 350)


def test_rdma_bytes_count_as_network(tmp_path):
    folder = tmp_path / "class/infiniband/efa_0/ports/1/hw_counters"
    folder.mkdir(parents=True)
    plain = InstanceCounters(OwnUse(), tmp_path / "none")().network_bytes
    for name, value in {"rx_bytes": 10**15, "rdma_write_bytes": 2 * 10**15, "lifespan": 12}.items():
        (folder / name).write_text(f"{value}\n")

    assert InstanceCounters(OwnUse(), tmp_path)().network_bytes - plain == pytest.approx(3e15, rel=1e-6)


def test_a_process_that_waits_or_is_stopped_is_idle():
    with started(WAITING) as waiting, started("print(1, flush=True)\nwhile True: pass") as stopped:
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        trees = [TreeCounters(process.pid) for process in (waiting, stopped)]
        before = [tree() for tree in trees]
        burn_cpu(0.1)
        after = [tree() for tree in trees]

    assert after[0].cpu_s - before[0].cpu_s <= 0.05  # some ticks: the end of its start
    assert after[0].disk_bytes == before[0].disk_bytes
    assert after[1].cpu_s == before[1].cpu_s


def test_a_tree_that_has_exited_is_idle_and_one_that_never_was_is_refused():
    """Another process that has the number by then does not count."""
    with running("sleep", "600") as process:
        counters = TreeCounters(process.pid)

    assert (counters(), counters.pids()) == (Counters(0.0, 0.0, 0.0), frozenset())
    with pytest.raises(ConfigurationError, match=f"--watch-pid {process.pid}: there is no such process"):
        TreeCounters(process.pid)


def table(pids=(), real_s=time.monotonic):
    return ProcessTable(lambda: frozenset(pids), real_s, lambda *_arguments: ([], []))


def test_a_copy_that_runs_is_seen_by_its_name(tmp_path):
    (tmp_path / "rsync").symlink_to("/usr/bin/sleep")
    with running(str(tmp_path / "rsync"), "600") as process:
        seen = table().read()

    assert any(f"({process.pid}," in name for name in seen.watched)


def use_of(presence, pid):
    (use,) = [process for process in presence.processes if f"({pid}," in process.who]
    return use


def test_a_gpu_process_gets_on_where_it_did_more_than_hold_memory_since_the_last_look_that_left_a_trace():
    seconds = [0.0]
    with started(COMPUTING) as process:
        look = table([process.pid], lambda: seconds[0])
        at_first = use_of(look.read(), process.pid).gets_on
        let_compute(process)
        later = []
        for seconds[0], keep in ((5.0, True), (6.0, False), (11.0, False)):
            later.append(use_of(look.read(keep=keep), process.pid).gets_on)

    assert (at_first, later) == (False, [True, True, False])


def connected(status, *there):
    return SimpleNamespace(status=status, laddr=("10.0.0.4", 5), raddr=there)


def test_a_rank_that_waits_for_a_peer_elsewhere_differs_from_one_that_stands_alone(monkeypatch):
    """It also differs from a process that is no rank, whatever its connections."""
    with started(WAITING, env={"WORLD_SIZE": "16", "RANK": "3"}) as rank, started(WAITING, env={}) as other:
        alone = use_of(table([rank.pid]).read(), rank.pid)
        connection = connected("ESTABLISHED", "10.0.0.9", 29500)
        monkeypatch.setattr(psutil.Process, "net_connections", lambda *_arguments: [connection])
        seen = table([rank.pid, other.pid]).read()

    # a number that no launcher sets is none
    monkeypatch.setattr(psutil.Process, "environ", lambda _: {"WORLD_SIZE": "9" * 5000, "PMI_SIZE": "8"})
    by_mpi = use_of(table([os.getpid()]).read(), os.getpid())
    waiting = use_of(seen, rank.pid)
    assert [(each.ranks, each.peers) for each in (alone, waiting)] == [(16, 0), (16, 1)]
    assert (use_of(seen, other.pid).peers, by_mpi.ranks) == (0, 8)


def test_a_connection_within_the_instance_or_of_no_process_is_to_no_peer(monkeypatch):
    peers = [("ESTABLISHED", "10.0.0.9", 9), ("SYN_SENT", "10.0.0.8", 9)]
    others = [("ESTABLISHED", "10.0.0.4", 9), ("ESTABLISHED",), ("CLOSE_WAIT", "10.0.0.7", 9)]
    connections = [connected(*each) for each in (*peers, *others)]
    monkeypatch.setattr(psutil.Process, "net_connections", lambda *_arguments: connections)

    assert processes._peers(Process(os.getpid(), ("python",))) == 2


def test_a_session_of_session_manager_is_in_use_while_it_is_open(monkeypatch):
    worker, other = "/usr/bin/ssm-session-worker", "/usr/bin/ssm-agent-worker"
    commands = (worker, "ada-0123", "i-1"), (worker,), (other, "bob-0123")
    listed = [Process(number, command) for number, command in enumerate(commands, 76)]
    monkeypatch.setattr(processes, "processes", lambda _root: iter(listed))

    sessions = [session for session in table().read().sessions if session.kind == "session-manager"]

    assert [(session.who, session.unused_s) for session in sessions] == [("ada-0123", 0.0), ("77", 0.0)]


def test_training_processes_are_those_of_a_launcher_or_of_our_own_trainer(monkeypatch):
    commands = ("torchrun", "train.py"), ("bash",), ("python", "-m", "gpu_fleet", "train.yaml")
    seen = [Process(number, command) for number, command in enumerate(commands, 1)]
    monkeypatch.setattr(processes, "processes", lambda: iter(seen))

    assert processes.trainers() == [seen[0].shown, seen[2].shown]
    assert processes.trainers(lambda: frozenset({2, 3})) == [seen[2].shown]


def test_who_is_connected_is_logged_in_and_whose_program_holds_a_gpu_runs_it(monkeypatch):
    look = table()
    uses = [ProcessUse(kind, "x", 9.0, user=user) for kind, user in (("gpu", "eve"), ("ssh", "bob"))]
    monkeypatch.setattr(look, "_uses", lambda *_arguments, **_more: uses)

    assert {("eve", Tie.RUNS), ("bob", Tie.LOGGED_IN)} <= set(look.read().users)


def test_what_a_process_used_since_a_look_is_none_of_another_s():
    rates = {
        _Used(10.0, 1.0, 2.0, 1000.0): (0.25, 50.0),
        _Used(20.0, 1.0, 2.0, 1000.0): (0.0, 0.0),
        _Used(10.0, 0.5, 2.0, 1000.0): (0.0, 0.0),  # another process had its id
        _Used(10.0, 1.0, 9.0, 9000.0): (0.0, 0.0),
    }

    assert {before: _Used(20.0, 1.0, 4.5, 1500.0).rates_since(before) for before in rates} == rates


@contextmanager
def terminal():
    """Open a terminal with a program that reads from it; yield (its other end, its path)."""
    master, slave = pty.openpty()
    place = os.ttyname(slave)
    with running("cat", stdin=slave, stdout=slave):
        os.close(slave)
        yield master, place
    os.close(master)


def unused_s(place):
    sessions = table().read().sessions
    (found,) = [each.unused_s for each in sessions if each.who.endswith(place.removeprefix("/dev/"))]
    return found


def test_a_terminal_counts_from_its_last_input():
    with terminal() as (keyboard, place):
        began = time.time()
        os.utime(place, (began - 3600, began))
        before = unused_s(place)
        os.write(keyboard, b"x\n")
        shown = b""
        while shown.count(b"x") < 2:  # its echo, and what `cat` writes once it has read it
            shown += os.read(keyboard, 16)

        assert 3600 - 8 <= before < 3600 - 8 + time.time() - began
        assert unused_s(place) == 0
        an_hour_ago = time.time() - 3600
        Path(place).write_text("Sun Nov 22 00:00:00\n")
        os.utime(place, (an_hour_ago, time.time()))
        Path(place).write_text("Sun Nov 22 00:00:01\n")
        assert unused_s(place) > 3500, "what a terminal shows is no input"


def test_a_process_is_reported_if_it_is_a_user_s_apart_by_whether_it_began_lately(monkeypatch):
    with running("sleep", "600", user=1234) as own, running("sleep", "601", user=0) as root:
        lately = {process.pid: process for process in table().read().started}
        monkeypatch.setattr(processes, "STARTED_LATELY_S", -1.0)  # nothing began so lately
        found = table().read()

    older = {process.pid: process for process in found.older}
    assert lately[own.pid].age_s < 60
    assert (older[own.pid].name, older[own.pid].age_s < 60) == ("sleep", True)
    assert root.pid not in lately | older
    assert found.started == ()


def test_at_a_terminal_whatever_root_runs_is_a_user_s_but_the_prompt_that_waits_for_one():
    called = {"agetty", "roots-own-job"}
    prompt, job = (at_a_terminal("bash", "-c", f"exec -a /sbin/{name} sleep 600") for name in called)
    with prompt, job:

        def named():
            return called <= {process.name for process in processes.processes() if process.terminal}

        until(named, "both names")
        begun = {process.name for process in table().read().started}

    assert called & begun == {"roots-own-job"}


def test_a_look_names_every_sensor_that_failed_and_keeps_the_others():
    sensors = Sensors(reads(Rates(1.0)), reads(error=LOST), reads(error=LOST))

    reading = sensors.poll(NOON)

    assert reading.rates == Rates(1.0)
    assert reading.failures == (f"gpu: {LOST}", f"processes: {LOST}")
    assert sensors.sample(NOON, everything=False).failures == (f"gpu: {LOST}",), "others are not asked"


def test_a_mistake_in_reading_is_a_failure_without_its_text_and_is_logged_once(caplog):
    sensors = Sensors(reads(Rates(1.0)), reads(()), reads(error=ZeroDivisionError("token 0123")))

    looks = [sensors.poll(NOON) for _ in range(3)]

    assert looks[0].rates == Rates(1.0)
    assert {look.failures for look in looks} == {
        ("processes: ZeroDivisionError, which the agent did not expect; its log says where",)
    }
    assert caplog.text.count("event=sensor-crashed sensor=processes") == 1


def test_a_look_before_an_end_sees_a_gpu_process_that_began_a_moment_ago():
    """The sample of a minute may be 25 s late; the check for a mark may be the last one."""
    nvml, now = FakeNvml(), [0.0]
    gpus = GpuSensor(nvml, 1, lambda: now[0])
    sensors = Sensors(reads(Rates(0.0)), gpus, reads(Presence()))
    sensors.sample(NOON, everything=True)
    nvml.gpus[0].pids, now[0] = [42], 1.0

    sampled = sensors.sample(NOON, everything=False)
    looked = sensors.poll(NOON)

    assert sampled.gpus[0].pids == ()
    assert looked.gpus[0].pids == (42,)
    assert gpus.pids == {42}
