"""Commands of users on Alibaba Cloud."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.core.marks import hold_in
from gpu_fleet_image.core.model import TAG_KEEP_BY, TAG_KEEP_REASON, TAG_KEEP_UNTIL
from gpu_fleet_image.core.times import format_time
from tests.image.alicloud_server import ENVIRON, REGION, serving
from tests.image.alicloud_world import Actions
from tests.image.moto_fleet import TAGS, policy_json, pool_policy
from tests.image.world import World


@pytest.fixture
def world(monkeypatch):
    made = World()
    with serving(Actions(made)) as server:
        made.asked = server.asked
        for name, value in {
            **ENVIRON,
            "GPU_FLEET_ALICLOUD_ENDPOINT": server.url,
            "GPU_FLEET_INSTANCE_FILE": "/nowhere.toml",
            "ALIBABA_CLOUD_REGION_ID": REGION,
        }.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "GPU_FLEET_LEDGER_URI", "GPU_FLEET_ACCOUNT_ID"):
            monkeypatch.delenv(name, raising=False)
        yield made


@pytest.fixture
def idle(world):
    instance = world.start(TAGS, busy=False)
    world.pass_minutes(90)
    return instance


@pytest.fixture
def policy_file(tmp_path):
    pools = {"dev": pool_policy(idle_after_hours=1, grace_minutes=20, min_uptime_minutes=30)}
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy_json(cloud="alicloud", region=REGION, pools=pools)))
    return str(path)


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["status"], ["{id}", "ada", "MARK"]),
        (["explain", "{id}"], ["verdict: MARK", "······"]),
        (["sweep", "--dry-run"], ["MARK"]),
    ],
)
def test_a_command_shows_what_would_become_of_each_instance(world, idle, policy_file, command, says):
    words = [word.format(id=idle.id) for word in command]

    result = run(*words, "--policy", policy_file, "--now", format_time(world.now))

    assert result.exit_code == 0, result.output
    assert [word for word in says if word.format(id=idle.id) not in result.output] == []
    assert world.asked["GetCallerIdentity"] <= 1, "the account is asked for once"


def test_an_instance_is_kept_and_released(world, idle):
    kept = run("keep", "8h", "--reason", "paper deadline", "--instance-id", idle.id)

    assert kept.exit_code == 0, kept.output
    assert idle.tags[TAG_KEEP_REASON] == "paper deadline"
    assert idle.tags[TAG_KEEP_BY] == f"{idle.tags[TAG_KEEP_UNTIL]} ada"

    released = run("release", "--instance-id", idle.id)

    assert released.exit_code == 0, released.output
    assert hold_in(idle.tags, datetime.now(UTC)) is None


def test_an_instance_that_is_not_there_is_named(world):
    result = run("keep", "8h", "--reason", "x", "--instance-id", "i-far", "--cloud", "alicloud")

    assert result.exit_code == 1
    assert "i-far does not carry gpu-fleet:managed=true" in result.output


def test_a_report_reads_the_ledger_from_oss(world, oss, policy_file, tmp_path):
    oss.create_bucket(Bucket="records")
    page = tmp_path / "saved.html"

    result = run(
        *("report", "--month", "2026-03", "--policy", policy_file),
        *("--ledger", "oss://records/reaper", "--to", page),
    )

    assert result.exit_code == 0, result.output
    assert page.exists()
