"""The cloud disk that becomes /scratch: the named one, and only while nothing else is on it."""

import json
from dataclasses import replace

import pytest

from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.gate import scratch_disk
from gpu_fleet_image.instance.gate.scratch_disk import Disk, disk_of, refusal, serial_of
from gpu_fleet_stacks.alicloud import launch
from tests.image.metadata_server import metadata_server

BLANK = Disk(path="/dev/vdb", label="", blank=True, mounted=False)


@pytest.fixture
def service(monkeypatch):
    with metadata_server("alicloud") as server:
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", server.base)
        server.says("disks/", "bp1root/\nbp1data/")
        server.says("disks/bp1root/name", "system")
        server.says("disks/bp1data/name", "scratch")
        yield server


@pytest.fixture
def instance(monkeypatch, tmp_path):
    """An instance that sees these disks, writes down what is run on it, and has its /scratch here."""
    commands: list[tuple[str, ...]] = []
    listing = {
        "blockdevices": [device("/dev/vda", "bp1root", children=[part("/")]), device("/dev/vdb", "bp1data")]
    }

    def run(*command: str) -> str:
        commands.append(command)
        return json.dumps(listing) if command == scratch_disk.LISTING else ""

    monkeypatch.setattr(scratch_disk, "_run", run)
    monkeypatch.setattr(scratch_disk, "SCRATCH", tmp_path / "scratch")
    return listing, commands


def device(path, serial, **more):
    return {
        "path": path,
        "type": "disk",
        "serial": serial,
        "label": None,
        "fstype": None,
        "pttype": None,
        **more,
    }


def part(mounted):
    return {"path": "/dev/vda1", "type": "part", "serial": None, "fstype": "ext4", "mountpoints": [mounted]}


def test_the_stack_and_the_instance_name_the_disk_alike():
    assert launch.SCRATCH_DISK == scratch_disk.NAME


def test_the_disk_is_found_by_the_name_that_the_stack_gave_it(service):
    assert serial_of(Metadata("alicloud"), "scratch") == "bp1data"


def test_an_instance_without_such_a_disk_keeps_scratch_where_it_is(service, instance):
    service.says("disks/bp1data/name", "somebodys")

    assert scratch_disk.main() == 0
    assert instance[1] == []


def test_a_blank_disk_gets_a_file_system_and_is_mounted(service, instance, tmp_path):
    assert scratch_disk.main() == 0

    assert instance[1][1:] == [
        ("mkfs.xfs", "-q", "-K", "-L", "gpu-scratch", "/dev/vdb"),
        ("mount", "-o", "noatime", "/dev/vdb", str(tmp_path / "scratch")),
    ]
    for folder in ("scratch", "scratch/keep", "scratch/runs"):
        assert oct((tmp_path / folder).stat().st_mode)[-4:] == "1777"


def test_after_a_reboot_what_the_disk_holds_stays(service, instance):
    instance[0]["blockdevices"][1].update(fstype="xfs", label="gpu-scratch")

    assert scratch_disk.main() == 0

    assert [command[0] for command in instance[1][1:]] == ["mount"]


@pytest.mark.parametrize(
    "holds",
    [
        {"fstype": "ext4", "label": "results"},
        {"pttype": "gpt", "children": [{"path": "/dev/vdb1", "type": "part"}]},
        {"fstype": "xfs", "label": "gpu-scratch", "mountpoints": ["/mnt"]},
    ],
    ids=["a-file-system", "partitions", "in-use"],
)
def test_a_disk_with_anything_else_on_it_is_left_and_said_so(service, instance, holds, caplog):
    instance[0]["blockdevices"][1].update(holds)

    assert scratch_disk.main() == 1

    assert [command[0] for command in instance[1]] == ["lsblk"]
    assert "event=scratch-disk-left serial=bp1data" in caplog.text


def test_a_silent_metadata_service_is_said(monkeypatch, instance, caplog):
    monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", "http://127.0.0.1:1")

    assert scratch_disk.main() == 1
    assert "event=scratch-disk-left" in caplog.text


def test_a_disk_that_the_instance_does_not_see_is_refused():
    assert disk_of({"blockdevices": [device("/dev/vda", "bp1root")]}, "bp1data") is None
    assert "no disk with this serial" in refusal(None)


def test_a_blank_disk_in_use_is_refused():
    assert refusal(replace(BLANK, mounted=True)) == "/dev/vdb is in use"
