"""From a shipped stack's registrations to a heartbeat: user data, payload, recipe, units."""

import gzip
import hashlib
import io
import json
import shutil
import tarfile

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


def put(cloud, content):
    """Put another payload into the stack's bucket; return its key."""
    key = f"{built.PREFIX}/{hashlib.sha256(content).hexdigest()}.tar.gz"
    account = cloud.rehearsed.outputs["bucket_uris"]["records"].rpartition("-")[2]
    s3 = first_boots.boto3.client("s3", region_name="us-east-1")
    s3.put_object(Bucket=f"gpu-fleet-aws-dev-records-{account}", Key=key, Body=content)
    return key


def offer(cloud, content):
    """Put another payload into the stack's bucket; return its description in the user data."""
    return {"key": put(cloud, content), "sha256": hashlib.sha256(gzip.decompress(content)).hexdigest()}


def lacking(cloud, part):
    """Offer the payload without the files whose names begin so."""
    target = io.BytesIO()
    with (
        tarfile.open(built.built("aws").path) as whole,
        tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as left,
    ):
        for member in whole:
            if not member.name.startswith(part):
                left.addfile(member, whole.extractfile(member))
    return offer(cloud, target.getvalue())


def test_without_the_agent_or_its_unit_in_the_payload_the_chain_breaks(cloud, text, tmp_path):
    agent = lacking(cloud, "python/gpu_fleet_image/instance/agent/")
    unit = lacking(cloud, f"rootfs/etc/systemd/system/{AGENT}")

    boot(cloud, changed(text, **agent), tmp_path / "agent")
    ended = run_enabled(cloud, tmp_path / "agent", AGENT, *SHORTLY)
    with pytest.raises(ChildError):
        boot(cloud, changed(text, **unit), tmp_path / "unit")

    assert ended.returncode != 0
    assert "agent" in ended.stderr
    assert AGENT not in first_boot.enabled_units(tmp_path / "unit")


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


def test_without_the_bootstrap_in_the_user_data_the_chain_breaks(cloud, text, tmp_path):
    whole = yaml.safe_load(text)
    files = whole.pop("write_files")
    parts = [[file for file in files if not file["path"].endswith(end)] for end in ("/fetch", ".service")]
    configs = [whole | {"write_files": left} for left in parts]
    configs.append({"write_files": files} | {key: it for key, it in whole.items() if key != "runcmd"})

    for number, config in enumerate(configs):
        with pytest.raises((first_boot.FirstBootError, ChildError)):
            boot(cloud, yaml.safe_dump(config), tmp_path / f"root-{number}")


def failing(cloud, text, root):
    """Boot an instance that must fail and unpack nothing; return the line with the reason."""
    with pytest.raises(ChildError, match="exit code 1"):
        boot(cloud, text, root)
    said = root.with_suffix(".log").read_text()
    assert "Traceback" not in said
    assert not (root / "opt/gpu-fleet/payload").exists()
    (line,) = [line for line in said.splitlines() if "event=bootstrap-failed" in line]
    return line


def test_a_payload_that_is_not_there_of_another_hash_or_cut_short_is_one_line(cloud, text, tmp_path):
    cut = put(cloud, built.built("aws").path.read_bytes()[:-100_000])
    for number, (payload, says) in enumerate(
        (
            ({"key": "image/payload/0.tar.gz"}, "/0.tar.gz: HTTP 404 NoSuchKey: the payload is not there"),
            ({"sha256": "0" * 64}, f"the user data has {'0' * 64}"),
            ({"key": cut}, "no whole gzip: "),
            ({"key": put(cloud, b"no gzip at all")}, "no whole gzip: "),
        )
    ):
        assert says in failing(cloud, changed(text, **payload), tmp_path / f"root-{number}")


def test_a_bucket_that_nothing_leads_to_or_an_instance_without_a_role_is_one_line(
    cloud, text, tmp_path, monkeypatch
):
    for variable, says in (
        ("AWS_ENDPOINT_URL", "no way to the bucket: http://127.0.0.1:9/"),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "no keys of the instance"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(cloud.environment, variable, "http://127.0.0.1:9")
            assert says in failing(cloud, text, tmp_path / variable)


def test_a_payload_that_another_zlib_compressed_is_unpacked(cloud, text, tmp_path):
    tar = gzip.decompress(built.built("aws").path.read_bytes())
    offered = offer(cloud, gzip.compress(tar, 1))

    boot(cloud, changed(text, **offered), tmp_path / "root")

    assert offered["sha256"] == built.built("aws").sha256
    assert (tmp_path / "root/opt/gpu-fleet/lib/gpu_fleet_image/core").is_dir()


def test_a_full_disk_is_one_line(cloud, text, tmp_path):
    home = tmp_path / "root/opt/gpu-fleet"
    home.mkdir(parents=True)
    (home / "payload.tar").symlink_to("/dev/full")

    with pytest.raises(ChildError, match="exit code 1"):
        first_boot.boot(text, tmp_path / "root", cloud.environment, tmp_path / "boot.log")

    assert f"{home}: No space left on device" in (tmp_path / "boot.log").read_text()
