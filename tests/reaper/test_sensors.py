"""Sensors against this very instance: real processes, real files, and counters that a test moves."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from image.reaper.agent.sensors import processes
from image.reaper.agent.sensors.counters import Counters, InstanceCounters, OwnUse, RateSensor, TreeCounters
from image.reaper.agent.sensors.gpu import GpuSensor
from image.reaper.agent.sensors.look import Sensors
from image.reaper.agent.sensors.processes import Process, ProcessTable, _Used
from image.reaper.agent.sensors.reading import Presence, ProcessUse, Rates
from image.reaper.errors import ConfigurationError, SensorError
from image.reaper.model import Tie
from tests.reaper.fake_nvml import FakeNvml
from tests.reaper.programs import at_a_terminal, until
from tests.reaper.samples import NOON


@contextmanager
def running(*command, **options):
    pipes = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE}
    with subprocess.Popen(command, **(pipes | options)) as process:
        try:
            # the kernel lets this process go on a moment before it shows the other's name and command line
            while process.poll() is None and not Path(f"/proc/{process.pid}/cmdline").read_bytes():
                pass
            yield process
        finally:
            process.kill()


def python(code):
    return [sys.executable, "-S", "-c", code]


# Ends its start before it says so, then waits in a read.
WAITING = "import sys\nprint(1, flush=True)\nsys.stdin.read()"
# Says so before it computes, which it does once it is asked to, and after it.
COMPUTING = """
import sys, time
print(1, flush=True)
sys.stdin.readline()
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print(2, flush=True)
sys.stdin.read()
"""


def let_compute(process):
    """Returns when a process has computed for 0.3 s."""
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"2\n"


def burn_cpu(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def counted(values):
    """Sensor over counters and a clock that are given look by look: (real seconds, counters)."""
    moments = iter(values)
    current = {}

    def real_s():
        current["now"] = next(moments)
        return current["now"][0]

    return RateSensor(lambda: current["now"][1], real_s)


def test_what_our_other_units_use_is_no_users_work_either(tmp_path):
    stat = tmp_path / "gpu-fleet.slice" / "cpu.stat"
    stat.parent.mkdir()
    stat.write_text("usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")

    own = OwnUse("/gpu-fleet.slice/gpu-reaper.service", tmp_path)

    assert own.cpu_s() == 2.5


@pytest.mark.parametrize(
    "cgroup", ["", "/", "/user.slice/user-1000.slice/gpu-fleet.slice/x", "/system.slice"]
)
def test_outside_of_our_slice_an_agent_counts_itself(cgroup, tmp_path):
    stat = tmp_path / "gpu-fleet.slice" / "cpu.stat"
    stat.parent.mkdir()
    stat.write_text("usage_usec 999000000\n")

    assert OwnUse(cgroup, tmp_path).cpu_s() < 900


def test_a_kernel_that_counts_no_slice_leaves_the_agents_own(tmp_path):
    assert OwnUse("/gpu-fleet.slice/gpu-reaper.service", tmp_path).cpu_s() > 0


def test_rates_are_differences_over_real_time():
    sensor = counted([(0.0, Counters(10.0, 1e6, 1e3)), (5.0, Counters(12.5, 6e6, 2e3))])

    first, second = sensor.read(), sensor.read()

    assert first == Rates()
    assert second == Rates(0.5, 1e6, 200.0)


def test_a_counter_that_went_down_counts_as_nothing():
    sensor = counted([(0.0, Counters(10.0, 1e6, 1e3)), (5.0, Counters(9.0, 0.0, 2e3))])

    sensor.read()

    assert sensor.read() == Rates(0.0, 0.0, 200.0)


def test_two_looks_that_follow_at_once_give_the_same_rates():
    sensor = counted([(0.0, Counters(0, 0, 0)), (5.0, Counters(5, 0, 0)), (5.01, Counters(9, 0, 0))])

    _, second, third = sensor.read(), sensor.read(), sensor.read()

    assert second == third


def test_counters_that_cannot_be_read_are_a_failure_that_says_why():
    def broken():
        raise FileNotFoundError(2, "No such file", "/proc/stat")

    with pytest.raises(SensorError, match=r"counters of CPU, disk and network: .*/proc/stat"):
        RateSensor(broken, time.monotonic).read()


def test_cpu_time_of_any_process_is_seen():
    counters = InstanceCounters(OwnUse())
    before = counters()

    # one that this process has waited for would be its own
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with running(*python(busy)) as process:
        process.stdout.readline()

        assert counters().cpu_s - before.cpu_s >= 0.25


def test_the_agent_s_own_cpu_time_is_not():
    own = OwnUse()
    before = own.cpu_s()

    burn_cpu(0.2)

    assert own.cpu_s() - before >= 0.15


def network_of(monkeypatch, own):
    """Counters whose network bytes a test sets."""
    bytes_sent = [0]
    card = SimpleNamespace(bytes_recv=0, bytes_sent=0)

    def read(**_options):
        card.bytes_sent = bytes_sent[0]
        return {"eth0": card, "lo": SimpleNamespace(bytes_recv=10**9, bytes_sent=10**9)}

    monkeypatch.setattr(psutil, "net_io_counters", read)
    counters = InstanceCounters(own, Path("/nowhere"))

    def after(more):
        bytes_sent[0] += more
        return counters().network_bytes

    return after


def test_the_loopback_is_no_network(monkeypatch):
    after = network_of(monkeypatch, OwnUse())

    assert [after(100), after(200)] == [100, 300]


def test_while_the_agent_copies_the_network_proves_nothing(monkeypatch):
    own = OwnUse()
    after = network_of(monkeypatch, own)
    quiet = after(100)
    with own.copying():
        copying = after(10**9)
    ended = after(10**9)

    assert (quiet, copying, ended) == (100, 100, 100)
    assert after(50) == 150


def test_a_copy_between_two_looks_is_not_missed(monkeypatch):
    own = OwnUse()
    after = network_of(monkeypatch, own)
    after(100)
    with own.copying():
        pass

    assert after(10**9) == 100


def test_rdma_bytes_count_as_network(tmp_path):
    folder = tmp_path / "class/infiniband/efa_0/ports/1/hw_counters"
    folder.mkdir(parents=True)
    plain = InstanceCounters(OwnUse(), tmp_path / "none")().network_bytes
    for name, value in {"rx_bytes": 10**15, "rdma_write_bytes": 2 * 10**15, "lifespan": 12}.items():
        (folder / name).write_text(f"{value}\n")

    assert InstanceCounters(OwnUse(), tmp_path)().network_bytes - plain == pytest.approx(3e15, rel=1e-6)


def test_a_process_that_computes_in_a_child_is_busy():
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
    with running(sys.executable, "-S", "-c", child, COMPUTING) as process:
        process.stdout.readline()
        counters = TreeCounters(process.pid)
        before = counters()
        let_compute(process)

        assert counters().cpu_s - before.cpu_s >= 0.2
        assert len(counters.pids()) == 2
        psutil.Process(process.pid).children()[0].kill()


def test_a_process_that_sleeps_is_idle():
    with running(*python(WAITING)) as process:
        process.stdout.readline()
        counters = TreeCounters(process.pid)
        before = counters()
        burn_cpu(0.2)

        after = counters()
        assert after.cpu_s - before.cpu_s <= 0.05  # some ticks: the end of its start
        assert after.disk_bytes == before.disk_bytes


def test_files_that_a_process_writes_are_seen(tmp_path):
    write = f"open({str(tmp_path / 'x')!r}, 'wb').write(bytes(2**22))\nprint(1, flush=True)\n"
    with running(*python("import sys\nsys.stdin.readline()\n" + write + "sys.stdin.read()")) as process:
        counters = TreeCounters(process.pid)
        before = counters()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        process.stdout.readline()

        assert counters().disk_bytes - before.disk_bytes >= 2**22


def test_a_tree_that_has_exited_is_idle_and_its_pid_is_not_taken_for_another_s():
    with running("sleep", "600") as process:
        counters = TreeCounters(process.pid)

    assert counters() == Counters(0.0, 0.0, 0.0)
    assert counters.pids() == frozenset()


def test_a_process_that_never_was_is_refused():
    with running("true") as process:
        process.wait()

    with pytest.raises(ConfigurationError, match=f"--watch-pid {process.pid}: there is no such process"):
        TreeCounters(process.pid)


def table(pids=(), root="/", real_s=time.monotonic):
    return ProcessTable(lambda: frozenset(pids), real_s, lambda *_arguments: ([], []), root=Path(root))


def test_a_copy_that_runs_is_seen_by_its_name(tmp_path):
    program = tmp_path / "rsync"
    program.symlink_to("/usr/bin/sleep")
    with running(str(program), "600") as process:
        seen = table().read()

    assert any(f"({process.pid}," in name for name in seen.watched)


def use_of(presence, pid):
    (use,) = [process for process in presence.processes if f"({pid}," in process.who]
    return use


@contextmanager
def looked_at(code):
    """A process that has begun, a table that has looked at it, and the seconds of that table's clock."""
    seconds = [0.0]
    with running(*python(code)) as process:
        process.stdout.readline()
        look = table([process.pid], real_s=lambda: seconds[0])
        look.read()
        yield process, look, seconds


def test_a_gpu_process_that_computes_gets_on():
    with looked_at(COMPUTING) as (process, look, seconds):
        let_compute(process)
        seconds[0] = 5.0

        assert use_of(look.read(), process.pid).gets_on


def test_a_gpu_process_that_only_holds_memory_does_not():
    with looked_at(WAITING) as (process, look, seconds):
        seconds[0] = 5.0

        assert not use_of(look.read(), process.pid).gets_on


def test_a_gpu_process_is_judged_from_the_second_look_on():
    assert not use_of(table([os.getpid()]).read(), os.getpid()).gets_on


def test_a_look_in_between_does_not_hide_what_was_done_before_it():
    with looked_at(COMPUTING) as (process, look, seconds):
        let_compute(process)
        seconds[0] = 5.0

        assert use_of(look.read(keep=True), process.pid).gets_on
        seconds[0] = 10.0
        assert use_of(look.read(), process.pid).gets_on
        seconds[0] = 15.0
        assert not use_of(look.read(), process.pid).gets_on


def test_a_rank_that_waits_for_a_peer_elsewhere_differs_from_one_that_stands_alone(monkeypatch):
    with running(*python(WAITING), env={"WORLD_SIZE": "16", "RANK": "3"}) as process:
        process.stdout.readline()
        alone = use_of(table([process.pid]).read(), process.pid)
        connection = SimpleNamespace(status="ESTABLISHED", laddr=("10.0.0.4", 5), raddr=("10.0.0.9", 29500))
        monkeypatch.setattr(psutil.Process, "net_connections", lambda *_arguments: [connection])
        waiting = use_of(table([process.pid]).read(), process.pid)

    assert (alone.ranks, alone.peers) == (16, 0)
    assert (waiting.ranks, waiting.peers) == (16, 1)


def test_a_gpu_process_that_is_no_rank_waits_for_no_peer_whatever_it_is_connected_to(monkeypatch):
    connection = SimpleNamespace(status="ESTABLISHED", laddr=("10.0.0.4", 5), raddr=("10.0.0.9", 443))
    monkeypatch.setattr(psutil.Process, "net_connections", lambda *_arguments: [connection])
    with running(*python(WAITING), env={}) as process:
        process.stdout.readline()
        seen = table([process.pid]).read()

    assert use_of(seen, process.pid).peers == 0


def test_a_connection_within_the_instance_or_of_no_process_is_to_no_peer(monkeypatch):
    here = ("10.0.0.4", 5)
    connections = [
        SimpleNamespace(status=status, laddr=here, raddr=there)
        for status, there in (
            ("ESTABLISHED", ("10.0.0.4", 9)),
            ("ESTABLISHED", ()),
            ("ESTABLISHED", ("10.0.0.9", 9)),
            ("SYN_SENT", ("10.0.0.8", 9)),
            ("CLOSE_WAIT", ("10.0.0.7", 9)),
        )
    ]
    monkeypatch.setattr(psutil.Process, "net_connections", lambda *_arguments: connections)

    assert processes._peers(Process(os.getpid(), ("python",))) == 2


@pytest.mark.parametrize(
    ("command", "who"),
    [
        (("/usr/bin/ssm-session-worker", "ada-0123", "i-1"), ["ada-0123"]),
        (("/usr/bin/ssm-session-worker",), ["77"]),
        (("/usr/bin/ssm-agent-worker", "ada-0123"), []),
    ],
)
def test_a_session_of_session_manager_is_in_use_while_it_is_open(monkeypatch, command, who):
    monkeypatch.setattr(processes, "processes", lambda _root: iter([Process(77, command)]))

    sessions = [session for session in table().read().sessions if session.kind == "session-manager"]

    assert [(session.who, session.unused_s) for session in sessions] == [(name, 0.0) for name in who]


def test_training_processes_are_those_of_a_launcher_or_of_our_own_trainer(monkeypatch):
    seen = [
        Process(1, ("torchrun", "train.py")),
        Process(2, ("bash",)),
        Process(3, ("python", "-m", "gpu_fleet", "train.yaml")),
    ]
    monkeypatch.setattr(processes, "processes", lambda: iter(seen))

    assert processes.trainers() == [seen[0].shown, seen[2].shown]
    assert processes.trainers(lambda: frozenset({2, 3})) == [seen[2].shown]


def test_who_is_connected_is_logged_in_and_whose_program_holds_a_gpu_runs_it(monkeypatch):
    look = table()
    uses = [
        ProcessUse(kind, "x", 9.0, 0.0, 0.0, user=user) for kind, user in (("gpu", "eve"), ("ssh", "bob"))
    ]
    monkeypatch.setattr(look, "_uses", lambda *_arguments, **_more: uses)

    assert {("eve", Tie.RUNS), ("bob", Tie.LOGGED_IN)} <= set(look.read().users)


@pytest.mark.parametrize(
    ("before", "rates"),
    [
        (_Used(10.0, 1.0, 2.0, 1000.0), (0.25, 50.0)),
        (_Used(20.0, 1.0, 2.0, 1000.0), (0.0, 0.0)),
        (_Used(10.0, 0.5, 2.0, 1000.0), (0.0, 0.0)),  # another process had its id
        (_Used(10.0, 1.0, 9.0, 9000.0), (0.0, 0.0)),
    ],
)
def test_what_a_process_used_since_a_look_is_none_of_another_s(before, rates):
    assert _Used(20.0, 1.0, 4.5, 1500.0).rates_since(before) == rates


def test_a_number_of_ranks_that_no_launcher_sets_is_none():
    with running(*python(WAITING), env={"WORLD_SIZE": "9" * 5000, "PMI_SIZE": "8"}) as process:
        process.stdout.readline()

        assert use_of(table([process.pid]).read(), process.pid).ranks == 8


@contextmanager
def terminal():
    """(the end to type at, the terminal's place), with a shell that reads from it."""
    master, slave = pty.openpty()
    place = os.ttyname(slave)
    with running("cat", stdin=slave, stdout=slave):
        os.close(slave)
        yield master, place
    os.close(master)


def unused_s(place):
    (found,) = [
        session for session in table().read().sessions if session.who.endswith(place.removeprefix("/dev/"))
    ]
    return found.unused_s


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


def test_what_a_terminal_shows_is_no_input():
    with terminal() as (_, place):
        an_hour_ago = time.time() - 3600
        Path(place).write_text("Sun Nov 22 00:00:00\n")
        os.utime(place, (an_hour_ago, time.time()))
        Path(place).write_text("Sun Nov 22 00:00:01\n")

        assert unused_s(place) > 3500


def test_a_process_that_began_lately_is_reported_if_it_is_a_user_s():
    nobody, person = 65534, 1234
    with running("sleep", "600", user=person) as own, running("sleep", "601", user=0) as root:
        started = {process.pid: process for process in table().read().started}

    assert nobody > person
    assert started[own.pid].age_s < 60
    assert root.pid not in started


def test_at_a_terminal_whatever_root_runs_is_a_user_s_but_the_prompt_that_waits_for_one():
    called = {"agetty", "roots-own-job"}
    with ExitStack() as running_ones:
        for name in called:
            running_ones.enter_context(at_a_terminal("bash", "-c", f"exec -a /sbin/{name} sleep 600"))
        until(
            lambda: called <= {process.name for process in processes.processes() if process.terminal},
            "both names",
        )
        started = {process.name for process in table().read().started}

    assert called & started == {"roots-own-job"}


def test_a_user_s_process_that_began_earlier_is_reported_as_such(monkeypatch):
    with running("sleep", "600", user=1234) as own, running("sleep", "601", user=0) as root:
        monkeypatch.setattr(processes, "STARTED_LATELY_S", -1.0)  # nothing began so lately
        found = table().read()

    older = {process.pid: process for process in found.older}
    assert (older[own.pid].name, older[own.pid].age_s < 60) == ("sleep", True)
    assert root.pid not in older
    assert found.started == ()


class Broken:
    """A sensor that fails."""

    def read(self, *, keep=False):
        raise SensorError("NVML_ERROR_GPU_IS_LOST")


class Resting:
    """A sensor that gives what it was made with."""

    def __init__(self, value):
        self.value = value

    def read(self, *, keep=False):
        return self.value


class RestingGpus:
    def read(self, *, fresh=False):
        return ()


def test_a_look_names_every_sensor_that_failed_and_keeps_the_others():
    reading = Sensors(Resting(Rates(1.0)), BrokenGpus(), Broken()).look(NOON)

    assert reading.rates == Rates(1.0)
    assert reading.failures == ("gpu: NVML_ERROR_GPU_IS_LOST", "processes: NVML_ERROR_GPU_IS_LOST")


class BrokenGpus:
    def read(self, *, fresh=False):
        raise SensorError("NVML_ERROR_GPU_IS_LOST")


class Mistaken:
    def read(self, *, keep=False):
        raise ZeroDivisionError("token 0123")


def test_a_mistake_in_reading_is_a_failure_without_its_text_and_is_logged_once(caplog):
    sensors = Sensors(Resting(Rates(1.0)), RestingGpus(), Mistaken())

    first, second, third = [sensors.look(NOON) for _ in range(3)]

    assert first.rates == Rates(1.0)
    assert first.failures == second.failures == third.failures
    assert first.failures == (
        "processes: ZeroDivisionError, which the agent did not expect; its log says where",
    )
    assert caplog.text.count("event=sensor-crashed sensor=processes") == 1


def test_the_process_table_is_read_only_when_asked_for():
    sensors = Sensors(Resting(Rates()), RestingGpus(), Broken())

    assert sensors.sample(NOON, everything=False).failures == ()


def test_a_look_in_between_leaves_the_rates_of_the_next_sample_alone():
    steps = [(0.0, Counters(0, 0, 0)), (6.0, Counters(6, 0, 0)), (8.0, Counters(8, 0, 0))]
    sensor = counted(steps)

    sensor.read()
    between = sensor.read(keep=True)

    assert between.cpu_cores == 1.0
    assert sensor.read().cpu_cores == 1.0


def test_a_look_within_a_second_takes_no_burst_for_a_rate():
    sensor = counted([(0.0, Counters(0, 0, 0)), (1.0, Counters(0.1, 102_400, 0))])

    sensor.read()
    look = sensor.read(keep=True)

    assert look.cpu_cores == 0.1 / 5
    assert look.disk_bytes_per_s == 102_400 / 5


def test_a_stopped_process_is_idle():
    with running(*python("print(1, flush=True)\nwhile True: pass")) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        counters = TreeCounters(process.pid)
        before = counters()
        burn_cpu(0.1)

        assert counters().cpu_s == before.cpu_s


def test_a_look_before_an_end_sees_a_gpu_process_that_began_a_moment_ago():
    """A minute's sample may know of it 25 s late; the look for a mark may be the last one."""
    nvml, now = FakeNvml(), [0.0]
    gpus = GpuSensor(nvml, 1, lambda: now[0])
    sensors = Sensors(Resting(Rates(0.0)), gpus, Resting(Presence()))
    sensors.sample(NOON, everything=True)
    nvml.gpus[0].pids, now[0] = [42], 1.0

    sampled = sensors.sample(NOON, everything=False)
    looked = sensors.look(NOON)

    assert sampled.gpus[0].pids == ()
    assert looked.gpus[0].pids == (42,)
    assert gpus.pids == {42}
