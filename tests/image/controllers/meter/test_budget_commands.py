"""Commands about the budget: show it, lift a freeze, read a day. They run against moto."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.controllers.meter.meter_state import Day, DayShare, MeteredInstance
from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.job_use import DayUse
from gpu_fleet_image.core.metrics import METRIC_GPU_UTILISATION, namespace
from tests.image.moto_fleet import (
    BUCKET,
    NOW,
    STACK,
    STARTED,
    budget_json,
    client,
    pool_policy,
    set_clock,
    write_policy,
)

QUEUED = {"groups": ["dev"], "max_size": 4, "queue_gpus": 1}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs ``gpu-reaper`` under a policy with a given budget, and a queue or none."""
    set_clock(monkeypatch, NOW)

    def invoke(*arguments, queued=False, **budget):
        pools = {"dev": pool_policy(idle_after_hours=200, **({"capacity": QUEUED} if queued else {}))}
        path = write_policy(tmp_path / "policy.json", pools=pools, budget=budget_json(**budget))
        return CliRunner().invoke(main, [*arguments, "--policy", str(path)])

    return invoke


def put(key, content):
    client("s3").put_object(Bucket=BUCKET, Key=key, Body=json.dumps(content))


def got(key):
    return json.load(client("s3").get_object(Bucket=BUCKET, Key=key)["Body"])


def written(day, use=None):
    """Write a day of the meter into the bucket, and perhaps one of the queue."""
    put(f"reaper/days/{day.date:%Y/%m}/{day.name}.json", day.to_json())
    if use is not None:
        put(f"reaper/{job_use.key_of(day.name)}", use.to_json())


def group(fleet):
    (found,) = fleet.autoscaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    return found["MaxSize"], [process["ProcessName"] for process in found["SuspendedProcesses"]]


def metric(fleet, name, pool=None):
    dimensions = [{"Name": "Pool", "Value": pool}] if pool else []
    found = fleet.cloudwatch.get_metric_statistics(
        Namespace=namespace(STACK),
        MetricName=name,
        Dimensions=dimensions,
        StartTime=STARTED - timedelta(hours=1),
        EndTime=STARTED + timedelta(hours=1),
        Period=60,
        Statistics=["Maximum"],
    )
    return max(point["Maximum"] for point in found["Datapoints"])


def test_a_sweep_meters_and_freezes_and_a_user_unfreezes(fleet, run):
    members = fleet.start_group("pool", desired=2)

    swept = run("sweep", "--live", monthly="0")

    assert "pools that freeze are closed" in swept.output
    assert metric(fleet, "FreezeStage") == 2
    assert metric(fleet, "HourCost", "dev") == pytest.approx(2 * 1.026)
    assert group(fleet) == (2, ["Launch"])
    assert fleet.members("pool") == members

    lifted = run("unfreeze", "--reason", "paper deadline", monthly="0")

    assert lifted.exit_code == 0, lifted.output
    assert group(fleet) == (10, [])
    again = run("sweep", "--live", monthly="0")
    assert "pools that freeze are" not in again.output
    assert group(fleet) == (10, [])
    subjects = [message["Subject"] for message in fleet.heard()]
    assert [subject for subject in subjects if "instances" in subject and "training" in subject] == [
        "test: training pools start no new instances",
        "test: training pools start instances again",
    ]


def test_unfreeze_of_a_team_lasts_until_its_month_ends(fleet, run):
    spent = {"spent": "20.52", "monthly": "20", "passed": 100, "frozen": True, "lifted": False}
    budgets = {
        "schema_version": 1,
        "month": f"{NOW:%Y-%m}",
        "days": {},
        "teams": {"vision": spent},
        "unread": [],
    }
    put("reaper/team-budgets.json", budgets)

    unknown = run("unfreeze", "--team", "nlp", "--reason", "deadline")
    lifted = run("unfreeze", "--team", "vision", "--reason", "deadline")

    assert (unknown.exit_code, "no budget of it is counted; allowed: vision" in unknown.output) == (1, True)
    assert lifted.output == f"team vision starts instances and jobs again until {NOW:%Y-%m} ends\n"
    assert got("reaper/team-budgets.json")["teams"]["vision"] == spent | {"frozen": False, "lifted": True}


def test_status_shows_what_is_spent(fleet, run):
    fleet.start()
    run("sweep", "--live")

    shown = run("status", "--now", (NOW + timedelta(hours=1)).isoformat())

    assert "1.13 USD an hour; " in shown.output
    assert " of 1,000 this month" in shown.output


def test_unfreeze_where_nothing_is_frozen_says_so(fleet, run):
    assert run("unfreeze", "--reason", "just in case").output == "nothing is frozen\n"


def day_of_ada(owner="ada") -> Day:
    """Return yesterday, on which one instance ran all day."""
    instance = MeteredInstance("dev", owner, "g5.xlarge", 1, Decimal("1.026"))
    yesterday = (NOW - timedelta(days=1)).replace(hour=0, minute=0, second=0)
    share = DayShare(instance, 86_400, Decimal("24.62"), ((0, 86_400),))
    return Day(yesterday, {"dev": Decimal("24.62")}, {"i-1": share})


def with_beats(fleet, ago) -> Day:
    """Store a day some days ago, on which the agent of its instance reported in four periods."""
    day = replace(day_of_ada(), date=day_of_ada().date - timedelta(days=ago - 1))
    written(day)
    one = [{"Name": "InstanceId", "Value": "i-1"}]
    beat = {"MetricName": METRIC_GPU_UTILISATION, "Dimensions": one, "Value": 25.0}
    data = [beat | {"Timestamp": day.date + timedelta(hours=hour)} for hour in (3, 9, 9.5, 15)]
    fleet.cloudwatch.put_metric_data(Namespace=namespace(STACK), MetricData=data)
    return day


def test_hours_of_a_day_whose_short_periods_the_cloud_has_forgotten_are_read_whole(fleet, run):
    day = with_beats(fleet, 61)

    (row,) = json.loads(run("report", "--day", day.name, "-o", "json").output)["rows"]

    assert (row["computing"], row["idle"], row["unknown"]) == ("0.75", "2.25", "21.00")


def test_a_day_is_read_as_a_page(fleet, run, tmp_path):
    day = with_beats(fleet, 1)
    page = tmp_path / "day.html"

    result = run("report", "--day", day.name, "--to", str(page))

    document = json.loads(run("report", "--day", day.name, "-o", "json").output)
    sheet = run("report", "--day", day.name, "-o", "csv").output
    assert [(row["pool"], row["idle"]) for row in document["rows"]] == [("dev", "0.75")]
    assert "dev,24.00,0.25,0.75,23.00,0.00,0.00,24.62" in sheet
    said = "24.00 GPU hours rented, 0.25 computing, 0.75 idle; 24.62 USD"
    assert f"{day.name}: {said}: {page}" in result.output
    assert ">0.77<" in page.read_text(), "three of four quarters of an hour were idle, the rest is unknown"


def store_days(computing):
    """Store yesterday and the days before it, each with the share of its GPU hours that computed.

    An empty share is a day without a record.
    """
    for number, share in enumerate(computing):
        if share == "":
            continue
        day = replace(day_of_ada(), date=day_of_ada().date - timedelta(days=number))
        written(day)
        report = {"computing": {} if share is None else {"i-1": [share, "1"]}}
        put(f"reaper/reports/{day.date:%Y/%m}/{day.name}.json", report)


def test_the_waste_of_thirty_days_is_a_line_rows_and_a_page_by_pool_and_owner(fleet, run, tmp_path):
    store_days(["0.88"] * 7 + [None] + ["0.62"] * 2 + [""] + ["0.62"] * 5)
    page = tmp_path / "waste.html"

    said = run("report", "--waste", "--to", str(page))
    (row,) = json.loads(run("report", "--waste", "30", "-o", "json").output)["rows"]

    idle = (
        "24 of them unknown, 25 % of the others idle (86.17 USD), 38 % in the first week and 12 % in the last"
    )
    assert said.output == f"{STACK}: 360 GPU hours in 15 days, {idle}: {page}\n"
    expected = {"pool": "dev", "owner": "ada", "rented": "360.00", "idle": "84.00", "unknown": "24.00"}
    expected |= {"idle_percent_first_week": "38.0", "idle_percent_last_week": "12.0"}
    assert row.items() >= expected.items()
    drawn = page.read_text()
    assert drawn.count("<circle") == 14, "a day without a report is no point"
    (curve,) = re.findall(r'<path d="([^"]+)" fill="none"', drawn)
    assert curve.count("M") == 3, "and the line crosses neither it nor a day without a record"
    assert '<td data-column="owner">ada</td>' in drawn
    assert '<td data-column="idle cost, USD" class="number">86.17</td>' in drawn


def test_a_damaged_report_of_a_day_is_named(fleet, run):
    store_days(["0.62"])
    day = day_of_ada()
    place = f"reports/{day.date:%Y/%m}/{day.name}.json"
    put(f"reaper/{place}", {"computing": {"i-1": "0.62"}})

    said = run("report", "--waste").output

    assert f"{place}: " in said
    assert "without it the day's hours are unknown" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--waste", "--day", "2026-03-01"), "--day '2026-03-01' and --waste 30; allowed: one of them"),
        (("--waste", "--by", "pool"), "--by pool and --waste 30; allowed: one of them"),
        (("--waste", "3"), "--waste 3: the meter has no day of the last 3 on record"),
        (("--waste", "0"), "0 is not in the range 1<=x<=366"),
        (("--month", "2020-11", "--by", "pool"), "--month 2020-11: the meter has no day of it on record"),
        (("--day", "2020-11-20"), "no day 2020-11-20 was metered"),
        (
            ("--by", "team", "-o", "focus"),
            "--by team and -o focus, whose rows name owner, team and pool; allowed: one",
        ),
    ],
)
def test_what_cannot_be_reported_is_refused_in_one_line(fleet, run, arguments, said):
    refused = run("report", *arguments)

    assert refused.exit_code != 0
    assert said in refused.output
    assert "Traceback" not in refused.output


def test_a_month_is_charged_back_by_owner_to_the_cent_of_the_meter(fleet, run):
    fleet.start()
    run("sweep", "--live")
    month = f"{NOW:%Y-%m}"

    done = run("report", "--month", month, "--by", "owner", "-o", "json")

    counted = sum(map(Decimal, got("reaper/meter.json")["month"].values()))
    assert done.exit_code == 0, done.output
    assert sum(Decimal(row["cost"]) for row in json.loads(done.output)) == counted.quantize(Decimal("0.01"))


def test_rows_of_a_month_come_with_a_word_about_what_has_no_price(fleet, run):
    known = day_of_ada()
    share = known.instances["i-1"]
    unpriced = replace(share, instance=replace(share.instance, priced=False))
    written(replace(known, instances={**known.instances, "i-2": unpriced}))

    done = run("report", "--month", f"{NOW:%Y-%m}", "--by", "owner", "-o", "csv", lacks=["log"])

    assert "warning: without a public price, not counted: log\n" in done.stderr
    assert "warning: 1 instance without a price: not counted but for the disks\n" in done.stderr
    assert "warning" not in done.stdout


def in_team(team, gid):
    ada = {"name": "ada", "uid": 2000, "keys": [], "team": team, "team_gid": gid, "admin": False}
    put("reaper/accounts.json", {"schema_version": 1, "users": [ada]})


def test_a_month_is_charged_to_runs_and_teams_as_the_bucket_knows_them(fleet, run):
    written(day_of_ada())
    state = {"phase": "finished", "started_at": STARTED.isoformat(), "at": NOW.isoformat(), "samples": 49_240}
    put("runs/words/ada/dev/digits-20261121-120000/i-1/state.json", state)
    in_team("vision", 30_001)
    month = ("--month", f"{NOW:%Y-%m}")

    by_run = run("report", *month, "--by", "run")
    by_team = run("report", *month, "--by", "team")
    as_focus = run("report", *month, "-o", "focus")

    assert "\nada/digits-20261121-120000,24.00," in by_run.output
    assert ",24.62,USD,49240,,2000.0,\n" in by_run.output, "samples, and how many for a dollar"
    assert "\nvision,24.00," in by_team.output
    assert '""gpu-fleet:team"": ""vision""' in as_focus.output


def test_the_jobs_of_a_queue_are_charged_to_their_users_and_an_unknown_day_is_named(fleet, run):
    day = day_of_ada(owner="")
    written(day, DayUse(day.name, {"i-1": {"bob/digits": 43_200.0}}, 64_800))
    asked = ("report", "--month", f"{NOW:%Y-%m}", "--by", "run")

    known, left = run(*asked, queued=True), run(*asked)
    put(f"reaper/queue/use/{day.name}.json", {"instances": 1})
    damaged = run(*asked, queued=True)

    assert "\nbob/digits,12.00," in known.output
    assert '\n"(pool dev, no job)",6.00,' in known.output
    assert '\n"(pool dev, jobs unknown)",6.00,' in known.output
    assert "the queue's jobs" not in known.output
    assert left.output == known.output, "of a pool that is in no queue any more"
    assert '\n"(pool dev, jobs unknown)",24.00,' in damaged.output
    assert f"warning: no readable record of the queue's jobs of {day.name}" in damaged.output


def test_who_is_known_by_an_address_and_by_an_account_is_one_person(fleet, run):
    day, month = day_of_ada(owner="Ada@corp.example"), f"--month {NOW:%Y-%m}"
    written(day, DayUse(day.name, {"i-1": {"ada/digits": 43_200.0}}, 86_400))
    in_team("", 0)
    asked = [f"{month} --by {key}" for key in ("owner", "team", "run")]
    asked += [f"{month} -o focus", "--waste 1 -o csv"]

    said = {words: run("report", *words.split(), queued=True).output for words in asked}

    assert [words for words, text in said.items() if "ada" not in text or "corp.example" in text] == []


def test_a_bill_is_compared_and_one_of_another_account_refused(fleet, run, tmp_path):
    day = day_of_ada()
    written(day)
    for account in ("123456789012", "210987654321"):
        head = "AccountID,BillingDate,InstanceID,PretaxAmount,Currency,Tag"
        (tmp_path / account).write_text(f"{head}\n{account},{day.name},i-1,24.00,USD,\n")

    compared, refused, missing = (
        run("report", "--month", f"{NOW:%Y-%m}", "--bill", str(tmp_path / name))
        for name in ("123456789012", "210987654321", "nowhere.csv")
    )

    assert f"{day.name},dev,i-1,both,24.14,24.00,-0.14" in compared.output
    assert refused.exit_code == 1
    assert "is of 210987654321; allowed: a bill with account 123456789012" in refused.output
    assert "nowhere.csv' does not exist" in missing.output  # before any cloud is asked
