"""`measure`: which torchruns an instance starts, how they end, and the figures of its disks and bucket."""

import errno
import io
import json
import os
import signal
import sys
import threading
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpu_fleet.core import config
from gpu_fleet.core.errors import CheckpointError
from gpu_fleet.core.world import world
from gpu_fleet_jobs.launch.launch import Forwarded
from gpu_fleet_jobs.launch.rendezvous import Rendezvous
from gpu_fleet_jobs.measure import command, storage
from gpu_fleet_jobs.measure.bench import measure_steps
from gpu_fleet_jobs.measure.rank import measure_rank
from gpu_fleet_jobs.measure.rows import PREFIX
from gpu_fleet_jobs.measure.storage import Effort, MeasuredFolder
from gpu_fleet_jobs.measure.workloads import workloads
from tests.ran import executable
from tests.training.ranks import run_ranks

SHORT = Effort(0.05, 16 << 20)
FIO = """#!{python}
import json, sys
words = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
side = "read" if "read" in words["--rw"] else "write"
print("fio: a warning")
print(json.dumps({{"fio version": "fio-3.36", "jobs": [{{side: {{"iops": 5e4, "bw_bytes": 2e9}}}}]}}))
"""
MOUNTS = """
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
30 22 0:40 / /home rw,relatime - nfs4 fs-1.efs:/ rw
31 22 0:41 / /scratch/shared rw shared:1 - lustre fs-2@tcp:/x rw
"""


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No instance file, and no variables of a scheduler."""
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "absent.toml"))
    for name in list(os.environ):
        if name.startswith("PET_"):
            monkeypatch.delenv(name)


def parts(*, in_node):
    return [
        (part.meeting.nodes if part.meeting else 1, part.processes, part.storage)
        for part, _ in command._parts(in_node=in_node)
    ]


def test_an_instance_is_measured_on_1_2_4_8_and_all_of_its_gpus():
    expected = {1: [1], 4: [1, 2, 4], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8], 16: [1, 2, 4, 8, 16]}

    assert {processes: command.sizes(processes) for processes in expected} == expected


@pytest.mark.parametrize(
    ("nodes", "rank", "processes", "expected"),
    [
        ("1", "0", "4", [(1, 1, False), (1, 2, False), (1, 4, True)]),
        ("2", "0", "2", [(1, 1, False), (1, 2, False), (2, 2, True)]),
        ("2", "1", "2", [(2, 2, True)]),
    ],
    ids=["alone", "the first of two", "the second"],
)
def test_the_first_instance_measures_alone_before_all_meet_and_storage_once_by_whole_instances(
    *, nodes, rank, processes, expected, alone, monkeypatch
):
    names = {"NNODES": nodes, "NODE_RANK": rank, "MASTER_ADDR": "127.0.0.1", "NPROC_PER_NODE": processes}
    for name, value in names.items():
        monkeypatch.setenv(f"PET_{name}", value)
    monkeypatch.setattr(
        command,
        "join",
        lambda _: Rendezvous(2, "127.0.0.1", "127.0.0.1", rank == "0") if nodes > "1" else None,
    )

    assert parts(in_node=True) == expected


def test_torchrun_reads_nothing_of_the_whole_run_for_one_of_its_parts():
    kept = command._without_scheduler({"PET_NNODES": "2", "PATH": "/bin"})

    assert (kept["PATH"], kept["OMP_NUM_THREADS"]) == ("/bin", "1")
    assert "PET_NNODES" not in kept


WAITS = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_part_that_hangs_is_ended_with_all_its_processes(restored_signals):
    assert command.run_part(WAITS, os.environ, Forwarded(), longest_s=0.05) == -signal.SIGKILL


def test_a_signal_reaches_the_part_under_way(restored_signals):
    forwarded = Forwarded()
    asked = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    asked.start()

    status = command.run_part(WAITS, os.environ, forwarded)
    asked.join()

    assert (status, forwarded.any) == (-signal.SIGTERM, True)


def test_fio_measures_where_it_is_installed(tmp_path, monkeypatch):
    executable(tmp_path / "bin/fio", FIO.format(python=sys.executable))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    speeds = storage.folder_speeds(MeasuredFolder("scratch", tmp_path), SHORT)

    assert {speed.metric: (speed.value, speed.unit) for speed in speeds} == {
        "write": (2.0, "GB/s"),
        "read": (2.0, "GB/s"),
        "random_write": (5e4, "IOPS"),
        "random_read": (5e4, "IOPS"),
    }
    assert {(speed.tool, speed.lower_bound) for speed in speeds} == {("fio-3.36", False)}


@pytest.mark.parametrize(
    ("fio", "why"),
    [
        ("#!/bin/sh\necho 'no libaio' >&2; exit 1", "fio: no libaio"),
        ("#!/bin/sh\necho '{}'", "fio gave no figure"),
    ],
)
def test_a_fio_that_gives_no_figure_is_unknown_with_its_reason(fio, why, tmp_path, monkeypatch):
    executable(tmp_path / "bin/fio", fio)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    speeds = storage.folder_speeds(MeasuredFolder("scratch", tmp_path), SHORT)

    assert [speed.value for speed in speeds] == [None] * 4
    assert all(speed.note.startswith(why) for speed in speeds)


def test_without_fio_python_measures_and_its_operations_are_a_lower_bound(tmp_path, monkeypatch):
    """The time may be over before a thread begins: each makes some operations all the same."""
    monkeypatch.setenv("PATH", str(tmp_path))
    folder, no_time = MeasuredFolder("scratch", tmp_path), replace(SHORT, seconds=0.0)

    speeds = {speed.metric: speed for speed in storage.folder_speeds(folder, no_time)}

    if speeds["read"].note:
        pytest.skip(f"no O_DIRECT here: {speeds['read'].note}")
    assert all((speed.value or 0) > 0 for speed in speeds.values())
    assert {name: speed.lower_bound for name, speed in speeds.items()} == {
        "write": False,
        "read": False,
        "random_write": True,
        "random_read": True,
    }
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_only_the_cache_can_serve_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    refuse = Mock(side_effect=OSError(errno.EINVAL, os.strerror(errno.EINVAL)))
    monkeypatch.setattr("gpu_fleet_jobs.measure.direct_io._opened", refuse)

    speeds = storage.folder_speeds(MeasuredFolder("scratch", tmp_path), SHORT)

    assert {(speed.value, speed.note) for speed in speeds} == {(None, f"{tmp_path}: Invalid argument")}


def test_homes_and_shared_scratch_count_only_where_a_network_has_them(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)

    kinds = [storage.kind_of(Path(folder), mounts) for folder in ("/home", "/etc", "/nowhere")]
    _, home, shared = storage.folders_of(tmp_path, Path("/home"), Path("/nowhere"), mounts)
    absent = storage.folder_speeds(shared, SHORT)

    assert kinds == ["nfs4", "ext4", "absent"]
    assert (home.folder, shared.folder) == (Path("/home"), None)
    assert {(speed.value, speed.absent) for speed in absent} == {(None, True)}
    assert (
        absent[0].note == "/nowhere is not shared on this instance (absent): storage.scratch_gib is not set"
    )


class Bucket:
    """An ObjectStore in a dictionary, which may refuse."""

    def __init__(self, refuses=""):
        self.objects, self.refuses = {}, refuses

    def check(self):
        if self.refuses:
            raise CheckpointError(self.refuses)

    def put(self, name, file):
        self.check()
        self.objects[name] = file.read_bytes()

    def get(self, name, file):
        self.check()
        file.write_bytes(self.objects[name])

    def remove_if_allowed(self, name):
        return self.objects.pop(name, None) is not None


def test_the_bucket_takes_one_object_gives_it_back_and_keeps_nothing_or_is_unknown_with_its_reason(tmp_path):
    bucket = Bucket()

    speeds = list(storage.bucket_speeds(bucket, tmp_path, 16 << 20))

    assert [speed.metric for speed in speeds] == ["put", "get"]
    assert all(speed.value > 0 for speed in speeds)
    assert bucket.objects == {}
    assert list(tmp_path.iterdir()) == []
    for without, why in ((Bucket("AccessDenied"), "AccessDenied"), (None, "no bucket")):
        speeds = list(storage.bucket_speeds(without, tmp_path, 1 << 20))
        assert [(speed.value, why in speed.note) for speed in speeds] == [(None, True)] * 2


def smaller(table):
    """The same with small pictures and short sequences: for others a processor takes minutes."""
    data = dict(table["data"])
    if "options" in data:
        return {**table, "data": {**data, "options": {**data["options"], "side": 64}, "workers": 0}}
    tokens = {**table["tokens"], "tokens": 1 << 12}
    return {**table, "tokens": tokens, "data": {**data, "sequence_length": 16, "workers": 0}}


def of_gpus(folder):
    """Seconds of a step of both models, configured as for a GPU."""
    with world(config.Parallel()) as where:
        few = [replace(each, per_rank=1, steps=1, table=smaller(each.table)) for each in workloads("bf16")]
        return [
            measure_steps(each.settings(1, folder / each.name), where, 1, 1, beside=False).trainer_s
            for each in few
        ]


@pytest.mark.prove
def test_both_models_train_by_the_configurations_of_a_gpu(tmp_path):
    (times,) = run_ranks(of_gpus, 1, tmp_path)

    assert [len(seconds) for seconds in times] == [1, 1]


def test_each_rank_has_the_same_work_at_every_size(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_fleet_jobs.measure.workloads.write_tokens", lambda *_, **__: None)

    for dtype, ranks in product(("bf16", "fp16", ""), (1, 8)):
        for workload in workloads(dtype):
            settings = workload.settings(ranks, tmp_path / f"{dtype}-{ranks}")

            assert settings.run.batch_size == workload.per_rank * ranks
            assert settings.precision.dtype == (dtype or "fp32")
            assert bool(workload.stands_for) == (not dtype)


def measured(folder):
    """What this rank prints."""
    os.chdir(folder)
    with redirect_stdout(io.StringIO()) as printed:
        measure_rank(2, 0.0, 0)
    return printed.getvalue()


@pytest.mark.prove
def test_two_ranks_on_processors_reduce_and_train_both_stand_ins_by_the_trainer(tmp_path):
    printed, nothing = run_ranks(measured, 2, tmp_path)

    said = [json.loads(line.removeprefix(PREFIX)) for line in printed.splitlines() if PREFIX in line]
    rows = [each["row"] for each in said if "row" in each]
    assert (said[0]["device"], said[0]["ranks_per_node"], nothing) == ("CPU", 1, "")
    assert [(row["subject"], row["size_mib"], row["stands_for"]) for row in rows] == [
        ("all_reduce", 1, ""),
        ("all_reduce", 4, ""),
        ("all_reduce", 16, ""),
        ("resnet_small", 0, "resnet50"),
        ("gpt_of_two_layers", 0, "gpt2_124m"),
    ]
    assert all(row["value"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []
