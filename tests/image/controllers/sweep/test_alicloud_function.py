"""The archive that the stack would upload, in a new interpreter without other packages."""

import base64
import io
import json
import sys
import zipfile
from datetime import UTC, datetime, timedelta

import pytest

from gpu_fleet_image.controllers.sweep import function_compute
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_POOL, TAG_REAP_AFTER, TAG_STACK
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_stacks.alicloud.functions import zipped
from gpu_fleet_stacks.payload import sweep_archive
from tests.image.alicloud_server import ENVIRON, serving
from tests.image.alicloud_world import Actions
from tests.image.world import World
from tests.ran import ran
from tests.stacks import alicloud_examples
from tests.stacks.clouds import code_of

STACK = alicloud_examples.stack()
TIMER_EVENT = json.dumps({"triggerTime": "2026-11-21T12:00:00Z", "triggerName": "reaper", "payload": "{}"})
# What the runtime does: without -S the tests' own packages would stand in for what the archive lacks.
CALL = """
import sys, types
folder, event = sys.argv[1:]
sys.path.insert(0, folder)
import index
context = types.SimpleNamespace(request_id="1", function=types.SimpleNamespace(timeout=300))
answer = index.handler(event.encode(), context)
assert "cryptography" not in sys.modules
print(answer)
"""


@pytest.fixture(scope="module")
def archive():
    return zipped(code_of(STACK, "reaper"))


@pytest.fixture(scope="module")
def unpacked(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("function")
    zipfile.ZipFile(io.BytesIO(base64.b64decode(archive))).extractall(folder)
    return folder


@pytest.fixture
def records(oss):
    """Create the stack's bucket of records."""
    bucket = STACK.bucket_name("records")
    oss.create_bucket(Bucket=bucket)
    oss.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    return bucket


def an_idle_world() -> tuple[World, str]:
    """Create an instance of the stack's first pool that is idle for longer than its pool allows."""
    pool = STACK.pools[0]
    world = World()
    idle = timedelta(hours=pool.idle.after_hours + 1)
    world.now = datetime.now(UTC) - idle
    tags = {TAG_MANAGED: "true", TAG_STACK: STACK.name, TAG_POOL: pool.name}
    instances = [world.start(tags, busy=False) for _ in range(pool.size.min + 1)]
    world.pass_minutes(int(idle.total_seconds() / 60))
    world.now = datetime.now(UTC)
    return world, instances[0].id


def test_the_archive_sweeps_as_the_runtime_would_run_it(unpacked, oss, records):
    world, instance = an_idle_world()
    with serving(Actions(world)) as server:
        environment = {
            **ENVIRON,
            "GPU_FLEET_LEDGER_URI": f"oss://{records}/reaper",
            "GPU_FLEET_ACCOUNT_ID": STACK.account_id,
            "GPU_FLEET_ALICLOUD_ENDPOINT": server.url,
            "GPU_FLEET_ALICLOUD_OSS_ENDPOINT": oss.meta.endpoint_url,
        }
        done = ran([sys.executable, "-I", "-S", "-c", CALL, str(unpacked), TIMER_EVENT], env=environment)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["failed"] == []
    assert report["marked"] == [instance]
    assert TAG_REAP_AFTER in world.instances[instance].tags
    assert world.published["SweepRuns"] == 1
    assert oss.list_objects_v2(Bucket=records)["KeyCount"] > 0


def test_equal_settings_give_an_equal_archive_below_the_limit_of_an_upload(archive):
    limit = 50 * 1024**2  # of a body with code in it (API CreateFunction)

    assert zipped(code_of(STACK, "reaper")) == archive
    assert len(archive) < limit / 10


def test_every_package_in_the_archive_is_pinned():
    lines = (sweep_archive.ROOT.parent / "requirements.txt").read_text().splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}

    assert set(sweep_archive.PACKAGES) <= pinned


def test_neither_cloud_s_archive_carries_the_other_s_modules(unpacked):
    on_aws = sweep_archive.modules(cloud="aws")

    assert not [path for path in on_aws if "alicloud" in path or "function_compute" in path]
    assert not list((unpacked / "gpu_fleet_image").rglob("aws*"))


@pytest.mark.parametrize(
    ("event", "flags"),
    [
        (b"", {}),
        (b"{}", {}),
        (b'{"dry_run": true}', {"dry_run": True}),
        (b'{"triggerName": "t", "payload": "{\\"dry_run\\": true}"}', {"dry_run": True}),
        (b'{"triggerName": "t", "payload": ""}', {}),
    ],
)
def test_a_timer_s_payload_and_a_user_s_event_ask_alike(event, flags):
    assert function_compute.flags(event) == flags


def test_an_event_that_is_no_json_changes_nothing_and_says_what_is_wrong():
    with pytest.raises(ConfigurationError, match="allowed: JSON"):
        function_compute.flags(b"dry run, please")
