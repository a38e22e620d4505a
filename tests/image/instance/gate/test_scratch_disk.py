"""The cloud disk that becomes /scratch: the named one, and only while nothing else is on it."""

import json

import pytest

from gpu_fleet_image.instance.gate import scratch_disk
from gpu_fleet_stacks.alicloud import launch
from tests.image.metadata_server import metadata_server


@pytest.fixture
def service(monkeypatch):
    with metadata_server("alicloud") as server:
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", server.base)
        server.says("disks/", "bp1root/\nbp1data/")
        server.says("disks/bp1root/name", "system")
        server.says("disks/bp1data/name", launch.SCRATCH_DISK)  # as the stack names it
        yield server


@pytest.fixture
def instance(monkeypatch, tmp_path):
    """An instance that sees these disks, writes down what is run on it, and has its /scratch here."""
    root = {"path": "/dev/vda1", "type": "part", "serial": None, "fstype": "ext4", "mountpoints": ["/"]}
    disks = [device("/dev/vda", "bp1root", children=[root]), device("/dev/vdb", "bp1data")]
    listing, commands = {"blockdevices": disks}, []

    def run(*command):
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
    } | more


def test_an_instance_without_such_a_disk_keeps_scratch_where_it_is(service, instance):
    service.says("disks/bp1data/name", "somebodys")

    assert scratch_disk.main() == 0
    assert instance[1] == []


def test_a_blank_disk_gets_a_file_system_and_is_mounted_as_after_a_reboot_with_what_it_holds(
    service, instance, tmp_path
):
    listing, commands = instance
    assert scratch_disk.main() == 0

    assert commands[1:] == [
        ("mkfs.xfs", "-q", "-K", "-L", "gpu-scratch", "/dev/vdb"),
        ("mount", "-o", "noatime", "/dev/vdb", str(tmp_path / "scratch")),
    ]
    for folder in ("scratch", "scratch/keep", "scratch/runs"):
        assert oct((tmp_path / folder).stat().st_mode)[-4:] == "1777"

    commands.clear()
    listing["blockdevices"][1].update(fstype="xfs", label="gpu-scratch")
    assert scratch_disk.main() == 0
    assert [command[0] for command in commands] == ["lsblk", "mount"]


@pytest.mark.parametrize(
    ("disk", "why"),
    [
        ({"fstype": "ext4", "label": "results"}, "/dev/vdb holds data that this program did not write"),
        ({"pttype": "gpt", "children": [{"path": "/dev/vdb1", "type": "part"}]}, "/dev/vdb holds data"),
        ({"fstype": "xfs", "label": "gpu-scratch", "mountpoints": ["/mnt"]}, "/dev/vdb is in use"),
        ({"mountpoints": ["/mnt"]}, "/dev/vdb is in use"),
        ({"serial": "another"}, "the instance sees no disk with this serial number"),
    ],
)
def test_a_disk_with_anything_else_on_it_or_that_is_not_seen_is_left_and_said_so(
    service, instance, disk, why, caplog
):
    instance[0]["blockdevices"][1].update(disk)

    assert scratch_disk.main() == 1

    assert [command[0] for command in instance[1]] == ["lsblk"]
    assert f"event=scratch-disk-left serial=bp1data reason='{why}" in caplog.text


def test_a_silent_metadata_service_is_said(monkeypatch, instance, caplog):
    monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", "http://127.0.0.1:1")

    assert scratch_disk.main() == 1
    assert "event=scratch-disk-left" in caplog.text
