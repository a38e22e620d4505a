"""From a shipped stack's registrations to a heartbeat: user data, payload, recipe, units."""

import gzip
import hashlib
import json
import shutil
import tarfile
from pathlib import Path

import pytest
import yaml

from gpu_fleet_stacks.payload import built
from gpu_fleet_stacks.rehearsal import first_boot
from gpu_fleet_stacks.rehearsal.processes import ChildError
from tests.stacks import first_boots
from tests.stacks.first_boots import AGENT, ALICLOUD, AWS, INSTANCE, SHORTLY, boot, run_enabled

GATE = "gpu-ready.service"
WAYS = {**dict.fromkeys(AWS, first_boots.aws), **dict.fromkeys(ALICLOUD, first_boots.alicloud)}


WITNESSES = ("aws-dev", "alicloud-dev")


@pytest.mark.parametrize(
    ("name", "pools"),
    [
        *((name, slice(1)) for name in WITNESSES),
        *(pytest.param(name, slice(None), marks=pytest.mark.prove) for name in WAYS),
    ],
)
def test_every_pool_of_a_shipped_stack_is_heard_of_after_its_first_boot(name, pools, tmp_path):
    with WAYS[name](name) as cloud:
        found = cloud.user_data()
        assert len(found) >= len(cloud.rehearsed.outputs["group_names"])
        for index, (start, text) in enumerate([*found.items()][pools]):
            root = tmp_path / f"instance-{index}"
            boot(cloud, text, root)
            ended = run_enabled(cloud, root, AGENT, *SHORTLY)
            assert ended.returncode == 0, f"{start}: {ended.stderr}"
            assert f"instance={INSTANCE}" in ended.stderr
            shutil.rmtree(root)
        assert cloud.heartbeats.instances() == {INSTANCE}


@pytest.fixture
def cloud():
    with first_boots.aws("aws-dev") as found:
        yield found


@pytest.fixture
def text(cloud):
    """Return the user data of one pool."""
    return cloud.user_data()["gpu-fleet-aws-dev-dev-template"]


def changed(text, **payload):
    """Return the user data with another description of the payload."""
    config = yaml.safe_load(text)
    (file,) = [file for file in config["write_files"] if file["path"].endswith("payload.json")]
    file["content"] = json.dumps(json.loads(file["content"]) | payload)
    return "#cloud-config\n" + yaml.safe_dump(config)


def lacking(content, part):
    """Write a payload's tarball without the files whose names begin so."""
    target = content.with_name("lacking.tar.gz")
    with tarfile.open(content) as whole, tarfile.open(target, "w:gz", compresslevel=1) as left:
        for member in whole:
            if not member.name.startswith(part):
                left.addfile(member, whole.extractfile(member))
    return target


def test_an_instance_gets_agent_packages_and_trainer_and_says_what_it_lacks_of_its_type(
    cloud, text, tmp_path
):
    root = tmp_path / "root"
    boot(cloud, text, root)
    library = root / "opt/gpu-fleet/lib/gpu_fleet_image"
    before = library.stat().st_ino

    gate, agent = run_enabled(cloud, root, GATE), run_enabled(cloud, root, AGENT, "--help")
    first_boot.boot(text, root, cloud.environment, tmp_path / "again.log")

    assert (gate.returncode, agent.returncode) == (1, 0)
    assert "name=gpu_count ok=False detail='0 of 1 GPUs: " in gate.stderr
    assert (root / "opt/gpu-fleet/vendor/psutil/_psutil_linux.abi3.so").is_file()
    assert (root / "opt/gpu-fleet/lib/gpu_fleet/trainer/train.py").is_file()
    assert library.stat().st_ino == before, "a second try took modules from under a running agent"
    (root / f"etc/systemd/system/multi-user.target.wants/{AGENT}").unlink()
    with pytest.raises(first_boot.FirstBootError, match="does not start with the instance"):
        run_enabled(cloud, root, AGENT, *SHORTLY)


def test_without_the_agent_in_the_payload_the_chain_breaks(cloud, text, tmp_path, monkeypatch):
    payload = built.built("aws")
    shutil.copyfile(payload.path, tmp_path / "whole.tar.gz")
    left = lacking(tmp_path / "whole.tar.gz", "python/gpu_fleet_image/instance/agent/")
    document = offer(cloud, left)

    boot(cloud, changed(text, **document), tmp_path / "root")
    ended = run_enabled(cloud, tmp_path / "root", AGENT, *SHORTLY)

    assert ended.returncode != 0
    assert "agent" in ended.stderr


def test_without_its_unit_in_the_payload_the_chain_breaks(cloud, text, tmp_path):
    shutil.copyfile(built.built("aws").path, tmp_path / "whole.tar.gz")
    left = lacking(tmp_path / "whole.tar.gz", f"rootfs/etc/systemd/system/{AGENT}")

    with pytest.raises(ChildError):
        boot(cloud, changed(text, **offer(cloud, left)), tmp_path / "root")

    assert AGENT not in first_boot.enabled_units(tmp_path / "root")


@pytest.mark.parametrize("part", ["runcmd", "program", "unit"])
def test_without_the_bootstrap_in_the_user_data_the_chain_breaks(cloud, text, tmp_path, part):
    config = yaml.safe_load(text)
    if part == "runcmd":
        del config["runcmd"]
    else:
        end = {"program": "/fetch", "unit": ".service"}[part]
        config["write_files"] = [file for file in config["write_files"] if not file["path"].endswith(end)]

    with pytest.raises((first_boot.FirstBootError, ChildError)):
        boot(cloud, yaml.safe_dump(config), tmp_path / "root")


def put(cloud, content):
    """Put another payload into the stack's bucket; return its key."""
    key = f"{built.PREFIX}/other.tar.gz"
    bucket = (
        f"gpu-fleet-aws-dev-records-{cloud.rehearsed.outputs['bucket_uris']['records'].rpartition('-')[2]}"
    )
    first_boots.boto3.client("s3", region_name="us-east-1").put_object(Bucket=bucket, Key=key, Body=content)
    return key


def offer(cloud, file: Path):
    """Put another payload into the stack's bucket; return its description in the user data."""
    content = file.read_bytes()
    key = put(cloud, content)
    return {"key": key, "sha256": hashlib.sha256(gzip.decompress(content)).hexdigest()}


def failing(cloud, text, root, match):
    """Boot an instance that must fail; return the line with the reason."""
    with pytest.raises(ChildError, match=match):
        boot(cloud, text, root)
    said = root.with_suffix(".log").read_text()
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if "event=bootstrap-failed" in line]
    return line


def test_a_payload_that_is_not_there_is_one_line(cloud, text, tmp_path):
    said = failing(cloud, changed(text, key="image/payload/0.tar.gz"), tmp_path / "root", "exit code 1")

    assert "image/payload/0.tar.gz: HTTP 404 NoSuchKey: the payload is not there" in said


def test_a_payload_of_another_hash_is_not_unpacked(cloud, text, tmp_path):
    said = failing(cloud, changed(text, sha256="0" * 64), tmp_path / "root", "exit code 1")

    assert f"the user data has {'0' * 64}" in said
    assert not (tmp_path / "root/opt/gpu-fleet/payload").exists()


def test_a_payload_that_another_zlib_compressed_is_unpacked(cloud, text, tmp_path):
    tar = gzip.decompress(built.built("aws").path.read_bytes())
    (tmp_path / "other.tar.gz").write_bytes(gzip.compress(tar, 1))
    offered = offer(cloud, tmp_path / "other.tar.gz")

    boot(cloud, changed(text, **offered), tmp_path / "root")

    assert offered["sha256"] == built.built("aws").sha256
    assert (tmp_path / "root/opt/gpu-fleet/lib/gpu_fleet_image/core").is_dir()


@pytest.mark.parametrize("broken", [lambda whole: whole[:-100_000], lambda whole: b"no gzip at all"])
def test_a_payload_that_is_cut_short_is_one_line(cloud, text, tmp_path, broken):
    key = put(cloud, broken(built.built("aws").path.read_bytes()))

    said = failing(cloud, changed(text, key=key), tmp_path / "root", "exit code 1")

    assert "no whole gzip: " in said
    assert not (tmp_path / "root/opt/gpu-fleet/payload").exists()


def test_a_bucket_that_nothing_leads_to_is_one_line(cloud, text, tmp_path, monkeypatch):
    monkeypatch.setitem(cloud.environment, "AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    said = failing(cloud, text, tmp_path / "root", "exit code 1")

    assert "no way to the bucket: http://127.0.0.1:9/" in said


def test_an_instance_without_a_role_is_one_line(cloud, text, tmp_path, monkeypatch):
    monkeypatch.setitem(cloud.environment, "AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")

    assert "no keys of the instance" in failing(cloud, text, tmp_path / "root", "exit code 1")


def test_a_full_disk_is_one_line(cloud, text, tmp_path):
    home = tmp_path / "root/opt/gpu-fleet"
    home.mkdir(parents=True)
    (home / "payload.tar").symlink_to("/dev/full")

    with pytest.raises(ChildError, match="exit code 1"):
        first_boot.boot(text, tmp_path / "root", cloud.environment, tmp_path / "boot.log")

    assert f"{home}: No space left on device" in (tmp_path / "boot.log").read_text()
