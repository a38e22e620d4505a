"""The sweep command against moto, from the first heartbeat to the last record."""

import json
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner, Result
from moto.core import DEFAULT_ACCOUNT_ID
from moto.sesv2.models import sesv2_backends

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.core.model import (
    TAG_IDLE_SINCE,
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_OWNER,
    TAG_REAP_AFTER,
    TAG_USERS,
)
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.providers.aws.instances import Instances
from tests.image.moto_fleet import BUCKET, NOW, REGION, STARTED, client, set_clock, write_policy

NOTICE = "test: 1 idle GPU instance(s) of ada will be stopped or terminated"
AFTER_GRACE = NOW + timedelta(minutes=31)


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Return a function that runs ``gpu-fleet sweep`` and returns its result and report."""

    def run(now: datetime, *flags: str, **policy) -> tuple[Result, dict]:
        path, report = write_policy(tmp_path / "policy.json", **policy), tmp_path / "report.json"
        set_clock(monkeypatch, now)
        arguments = ["sweep", "--policy", str(path), "--report", str(report)]
        arguments += [] if "--dry-run" in flags else ["--live"]
        result = CliRunner().invoke(main, [*arguments, *flags], catch_exceptions=False)
        return result, json.loads(report.read_text())

    return run


def verdicts(report):
    return {verdict["instance_id"]: verdict["verdict"] for verdict in report["verdicts"]}


def test_an_idle_instance_is_marked_and_its_owner_notified(fleet, sweep):
    idle, busy = fleet.start(2)
    fleet.heartbeats([idle], idle_hours=2.5)
    fleet.heartbeats([busy], idle_hours=0)

    result, report = sweep(NOW)

    assert result.exit_code == 0, result.output
    assert verdicts(report) == {idle: "MARK", busy: "KEEP-busy"}
    assert {TAG_IDLE_SINCE, TAG_REAP_AFTER} <= fleet.tags(idle).keys()
    assert [message["Subject"] for message in fleet.heard()] == [NOTICE]
    assert fleet.state(idle) == "running"


def known_by_mail(**changes):
    """Write a roster with the address of a user, and one that may write to it."""
    client("sesv2").create_email_identity(EmailIdentity="fleet@example.com")
    write_roster(**{"users": {"grace": "grace@example.com"}, "sender": "fleet@example.com"} | changes)


def write_roster(**changes):
    content = {"users": {}, "operators": [], "sender": None, "webhooks": []} | changes
    client("s3").put_object(Bucket=BUCKET, Key="reaper/roster.json", Body=json.dumps(content).encode())


def test_the_user_seen_on_an_instance_is_mailed_and_the_grace_begins(fleet, sweep):
    idle = fleet.idle(**{TAG_USERS: "grace:login"})
    known_by_mail()

    result, report = sweep(NOW, notify_users=True)

    assert result.exit_code == 0, result.output
    (mail,) = sent_mail()
    assert mail.destinations["ToAddresses"] == ["grace@example.com"]
    assert f"gpu-fleet release --instance {idle} --stack test" in str(mail.body)
    assert (report["marked"], report["unreached"]) == ([idle], {})


def test_an_instance_whose_notice_was_not_delivered_is_not_marked_and_the_sweep_says_so(fleet, sweep):
    idle = fleet.idle(**{TAG_USERS: "grace:login"})
    known_by_mail(sender="not-verified@example.com")

    result, report = sweep(NOW, notify_users=True)

    assert result.exit_code == 1
    assert (report["marked"], list(report["unreached"])) == ([], ["grace"])
    assert TAG_REAP_AFTER not in fleet.tags(idle)
    assert "could not be notified: grace: " in result.output
    assert published("SweepUsersUnreached") == 1


def test_a_login_name_without_an_address_fails_no_sweep(fleet, sweep):
    idle = fleet.idle(**{TAG_USERS: "stranger:login"})
    client("sns").subscribe(TopicArn=fleet.topic_arn, Protocol="email", Endpoint="ops@example.com")
    write_roster(operators=["ops@example.com"])

    result, report = sweep(NOW, notify_users=True)

    assert result.exit_code == 0, result.output
    assert report["marked"] == [idle]
    assert report["unreached"] == {"stranger": "has no address in notify.users"}
    assert published("SweepUsersUnreached") == 1
    assert published("SweepFailures") == 0


def test_a_mark_that_cannot_be_written_sends_no_mail_again_each_sweep(fleet, sweep, monkeypatch):
    idle = fleet.idle(**{TAG_USERS: "grace:login"})
    known_by_mail()

    with monkeypatch.context() as broken:
        broken.setattr(Instances, "tag", refuse)
        for minutes in (0, 1):
            sweep(NOW + timedelta(minutes=minutes), notify_users=True)
    _, report = sweep(NOW + timedelta(minutes=2), notify_users=True)

    assert report["marked"] == [idle]
    assert len(sent_mail()) == 1


def refuse(*_):
    raise CloudError("CreateTags: UnauthorizedOperation")


def sent_mail():
    return list(sesv2_backends[DEFAULT_ACCOUNT_ID][REGION].core_backend.sent_messages)


def published(metric):
    answer = client("cloudwatch").get_metric_statistics(
        Namespace="GpuFleet/test",
        MetricName=metric,
        StartTime=STARTED - timedelta(hours=1),
        EndTime=STARTED + timedelta(hours=1),
        Period=86400,
        Statistics=["Sum"],
    )
    return sum(datapoint["Sum"] for datapoint in answer["Datapoints"])


def test_a_marked_instance_is_terminated_after_its_grace_with_a_record_of_it(fleet, sweep):
    idle = fleet.idle()
    sweep(NOW)
    fleet.heartbeats([idle], idle_hours=2.5, until=AFTER_GRACE)

    result, report = sweep(AFTER_GRACE)

    assert result.exit_code == 0, result.output
    assert [action["instance_id"] for action in report["acted"]] == [idle]
    assert fleet.state(idle) == "terminated"
    assert report["saved_usd_per_month"] == "734.380"
    assert [(record["instance_id"], record["action"]) for record in fleet.ledger()] == [(idle, "terminate")]


def test_a_group_member_leaves_its_group_smaller_and_never_below_its_minimum(fleet, sweep):
    members = fleet.start_group("pool", desired=3, min_size=1)
    fleet.heartbeats(members, idle_hours=2.5)
    sweep(NOW)
    fleet.heartbeats(members, idle_hours=2.5, until=AFTER_GRACE)

    _, report = sweep(AFTER_GRACE)

    gone = {action["instance_id"] for action in report["acted"]}
    assert len(gone) == 2
    assert set(fleet.members("pool")) == set(members) - gone
    assert {fleet.state(instance) for instance in gone} == {"terminated"}


def test_a_dry_run_plans_the_same_and_changes_nothing(fleet, sweep):
    idle = fleet.idle()

    _, report = sweep(NOW, "--dry-run")

    assert verdicts(report) == {idle: "MARK"}
    assert report["calls"]["write"] == 0
    assert TAG_REAP_AFTER not in fleet.tags(idle)
    assert fleet.heard() == []


def test_instances_of_other_stacks_and_unmanaged_ones_are_never_listed(fleet, sweep):
    fleet.start(**{"gpu-fleet:stack": "other"})
    fleet.start(**{"gpu-fleet:managed": "false"})

    _, report = sweep(NOW)

    assert report["verdicts"] == []


def test_termination_protection_is_a_lock_that_status_shows(fleet, sweep, tmp_path):
    locked, other = fleet.start(2)
    fleet.ec2.modify_instance_attribute(InstanceId=locked, DisableApiTermination={"Value": True})
    fleet.heartbeats([locked, other], idle_hours=2.5)
    sweep(NOW)
    fleet.heartbeats([locked, other], idle_hours=2.5, until=AFTER_GRACE)

    result, report = sweep(AFTER_GRACE)

    assert (result.exit_code, report["failed"]) == (0, [])
    assert (fleet.state(locked), fleet.state(other)) == ("running", "terminated")
    (kept,) = [verdict for verdict in report["verdicts"] if verdict["instance_id"] == locked]
    assert (kept["verdict"], kept["alert"]) == ("KEEP-protected", True)
    assert "termination protection is on: lift it, or keep the instance" in kept["reason"]
    command = ["--policy", str(tmp_path / "policy.json"), "--now", AFTER_GRACE.isoformat()]
    assert "KEEP-protected" in CliRunner().invoke(main, ["status", *command]).output
    assert "termination protection is on" in CliRunner().invoke(main, ["explain", locked, *command]).output


@pytest.mark.parametrize("command", ["sweep", "status"])
@pytest.mark.parametrize("text", ["[/tmp/results]", "ada [/]"])
def test_what_users_write_into_tags_is_shown_as_they_wrote_it(fleet, tmp_path, command, text):
    kept = (NOW + timedelta(hours=8)).isoformat()
    fleet.start(**{TAG_OWNER: text, TAG_KEEP_UNTIL: kept, TAG_KEEP_REASON: f"see {text}"})
    path = write_policy(tmp_path / "policy.json")
    arguments = [command, "--policy", str(path), "--now", NOW.isoformat()]

    result = CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert result.exit_code == 0, result.output
    assert text in result.output


def test_a_report_that_cannot_be_written_is_one_message_before_anything_is_done(fleet, tmp_path, monkeypatch):
    fleet.start()
    path, gone = write_policy(tmp_path / "policy.json"), tmp_path / "gone/report.json"
    set_clock(monkeypatch, NOW)
    arguments = ["sweep", "--policy", str(path), "--live", "--report", str(gone)]

    result = CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert result.exit_code == 2
    assert "0 terminated or stopped" not in result.output
    assert f"'--report': '{gone}': {gone.parent} is no folder in which you may write" in result.output


@pytest.mark.parametrize("shift", [timedelta(days=30), timedelta(0), timedelta(days=-1)])
def test_a_live_sweep_takes_no_time_but_the_present_and_does_nothing(fleet, tmp_path, shift):
    idle = fleet.idle()
    path, now = write_policy(tmp_path / "policy.json"), (NOW + shift).isoformat()

    result = CliRunner().invoke(main, ["sweep", "--policy", str(path), "--live", "--now", now])

    assert result.exit_code != 0
    assert "--now with --live; allowed: --now with --dry-run only" in result.output
    assert TAG_REAP_AFTER not in fleet.tags(idle)
    assert client("s3").list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0
