"""The parts of the play that can be looked at without playing it."""

import io
import re
import signal
import sys
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import boto3
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH
from gpu_fleet_stacks.rehearsal import closing, instances
from gpu_fleet_stacks.rehearsal.bucket_policies import conditions_left_out
from gpu_fleet_stacks.rehearsal.cast import PARTS
from gpu_fleet_stacks.rehearsal.clients import ClientPool, RegionClients
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.rehearsal.processes import ChildError, child, run
from gpu_fleet_stacks.rehearsal.reaper_act import timeline
from gpu_fleet_stacks.settings import Idle, stack_files
from tests.ran import ran
from tests.stacks import registrations
from tests.stacks.standing import standing

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TRAINER = {"resume_equal": True, "metric": 0.99, "baseline": 0.88, "baseline_name": "nearest centroid"}
REAPER = {"reaped": 1, "false_kills": 0, "changed_by_dry_run": 0}


@given(st.floats(0.1, 300), st.integers(0, 600))
def test_an_instance_idle_from_the_first_heartbeat_is_due_when_the_function_runs(after_hours, grace_minutes):
    moments = timeline(Idle(after_hours=after_hours, grace_minutes=grace_minutes), NOW)

    assert moments.mark - moments.begin >= timedelta(hours=after_hours)
    assert moments.end - moments.mark >= timedelta(minutes=grace_minutes)
    assert moments.end == NOW


def test_exactly_one_part_has_to_go():
    assert [part.name for part in PARTS if part.goes] == ["idle"]


BROKEN_PROMISES = {
    "other weights than the undisturbed one": ("trainer", {"resume_equal": False}),
    "no better than nearest centroid": ("trainer", {"metric": 0.5}),
    "the idle instance was not terminated": ("reaper", {"reaped": 0}),
    "the sweep terminated 2 instances that had to stay": ("reaper", {"false_kills": 2}),
    "the dry sweep changed 1 instance": ("reaper", {"changed_by_dry_run": 1}),
}


def test_a_figure_that_must_never_be_is_reported_and_no_other():
    sound = {"trainer": TRAINER, "reaper": REAPER}

    assert closing.broken_promises(sound) == []
    for words, (act, changes) in BROKEN_PROMISES.items():
        (promise,) = closing.broken_promises(sound | {act: sound[act] | changes})
        assert words in promise


def test_the_figures_are_written_by_act_with_money_as_a_number(tmp_path):
    target = tmp_path / "build" / "rehearsal.json"

    closing.write(target, "local", {"reaper": {"saved_usd_per_month": Decimal("734.38")}}, 1.239)

    assert '"saved_usd_per_month": 734.38' in target.read_text()
    assert '"seconds": 1.24' in target.read_text()


def test_a_child_that_fails_leaves_its_last_words(tmp_path):
    command = [sys.executable, "-c", "import sys; print('out of disk'); sys.exit(3)"]

    with pytest.raises(ChildError, match=r"exit code 3(.|\n)*out of disk"):
        run(command, tmp_path / "log")


def test_a_child_process_that_is_terminated_takes_its_children_along(tmp_path):
    grandchild = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    )

    with child([sys.executable, "-c", grandchild], tmp_path / "log") as process:
        while not (tmp_path / "log").read_text().endswith("\n"):
            assert process.poll() is None
            threading.Event().wait(0.05)  # polls another process; its clock is not ours
        sleeper = psutil.Process(int((tmp_path / "log").read_text()))

    assert process.returncode == -signal.SIGTERM
    _, alive = psutil.wait_procs([sleeper], timeout=120)
    assert [each_process for each_process in alive if each_process.status() != psutil.STATUS_ZOMBIE] == []


def ask(service, path: str, token: str | None) -> int:
    header = [] if token is None else ["-H", f"X-aws-ec2-metadata-token: {token}"]
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *header, f"{service.endpoint}{path}"]
    return int(ran(command, check=True).stdout)


def test_the_metadata_service_wants_its_token_and_knows_a_notice_once_it_is_sent():
    notice = "/latest/meta-data/spot/instance-action"
    with metadata_service() as service:
        before = ask(service, notice, service.token)
        service.send_spot_notice(NOW)

        assert ask(service, notice, None) == 401
        assert (before, ask(service, notice, service.token)) == (404, 200)
        assert '"2026-11-21T12:02:00Z"' in service.answers[notice]


@pytest.fixture
def local():
    with standing("local", "us-east-1", lambda: registrations.run("local")) as rehearsed:
        yield rehearsed


def figures_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^│ ([a-z_]+\.[a-z_]+) +│ +(\S+) │$", text, re.MULTILINE))


def test_the_first_page_shows_the_figures_of_a_rehearsal(local):
    """Those that a rehearsal must have to pass, its resources, and the price of what it terminates."""
    kind = catalog.load().get(stack_files.settings_of("local").pools[0].types[0])
    saved = kind.price.amount_per_hour * HOURS_PER_MONTH
    real = {"resources": {"created": local.created}, "trainer": TRAINER}
    real["reaper"] = REAPER | {"saved_usd_per_month": saved}
    Console(file=(file := io.StringIO()), width=120).print(closing.table(real, 60.0))

    shown = figures_of((ROOT / "README.md").read_text())

    assert len(shown) == 5
    assert shown == {name: value for name, value in figures_of(file.getvalue()).items() if name in shown}


def test_conditional_refusals_of_a_bucket_policy_are_left_out_and_stay_written(local):
    bucket = local.outputs["bucket_uris"]["data"].removeprefix("s3://")
    s3 = boto3.client("s3")

    with conditions_left_out():
        s3.put_object(Bucket=bucket, Key="a", Body=b"b")

    assert "aws:SecureTransport" in s3.get_bucket_policy(Bucket=bucket)["Policy"]


def test_an_instance_can_be_dated_back_and_its_user_data_is_what_its_template_holds(local):
    clients = RegionClients("us-east-1", ClientPool())
    instance, *_ = instances.launched(clients, "local")

    instances.date_back(clients, instance.id, NOW)

    assert instances.pictures(clients, "local")[instance.id]["LaunchTime"] == NOW
    user_data = instances.user_data(clients, local.outputs["launch_template_ids"]["spot"])
    assert 'pool = "spot"' in user_data
    assert instances.table(()) == "none: no group starts an instance by itself"
