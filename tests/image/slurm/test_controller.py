"""A poll of the controller: partitions, lost instances and waiting jobs."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock, call

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.keys import ACCOUNTS, GROWTH
from gpu_fleet_image.core.queue_errors import PolicyUnreadError, SlurmError
from gpu_fleet_image.core.store import StoredObject
from gpu_fleet_image.slurm import configuration, controller, slurm
from gpu_fleet_image.slurm.accounting import TeamLimits
from gpu_fleet_image.slurm.configuration import Cluster
from gpu_fleet_image.slurm.sizes import NodeSize, QueuePool, pools_of
from gpu_fleet_image.slurm.use_record import UseRecord
from tests.image.slurm.test_answers import SAID, TWO
from tests.image.slurm.test_slurm import NODE

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
SIZE = {"queue_gpus": 8, "queue_cpus": 96, "queue_memory_mib": 1_100_000, "max_size": 3}
POLICY = {"pools": {"train": {"capacity": SIZE}, "dev": {"capacity": None}}}


def waits(number: int = 7, nodes: int = 1, **changes: object) -> dict:
    """Return a waiting job for whole instances, as Slurm writes it."""
    asked = {"tres_req_str": f"cpu=2,node={nodes}", "max_nodes": nodes, "tasks": nodes, "cpus": nodes}
    given = {
        "account": "nlp",
        "eligible_time": 0,
        "submit_time": 0,
        "state_reason": "Resources",
        "job_state": "PENDING",
        "tres_per_job": "",
    }
    return {**TWO, **asked, **given, "tres_per_node": "gres:gpu:8", "job_id": number, "nodes": "", **changes}


@dataclass
class Site:
    """Fake of Slurm and the cloud for one poll."""

    nodes: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    jobs: list[dict] = field(default_factory=list)
    policy: dict | None = field(default_factory=lambda: POLICY)
    calls: list[str] = field(default_factory=list)
    said: list[dict] = field(default_factory=list)
    kept: list[dict] = field(default_factory=list)
    teams: dict[str, TeamLimits] = field(default_factory=dict)
    changed: bool = False

    def __post_init__(self) -> None:
        self.watch = controller.ControllerWatch(
            lambda: self.policy,
            lambda _: self.states,
            self.said.append,
            lambda _pools: self.changed,
            self.kept.append,
            ask=self.ask,
            limits=lambda: self.teams,
        )

    def ask(self, command):
        text = " ".join(command)
        if text.endswith("show nodes"):
            lines = [NODE.format(name=name, state=state, reason="") for name, state in self.nodes.items()]
            return "\n".join(lines)
        if text == "squeue --json":
            return json.dumps({**SAID, "jobs": self.jobs})
        self.calls.append(text)
        if "excnodelist=" in text:
            number = int(text.partition("jobid=")[2].split()[0].partition("_")[0])
            changed = next(job for job in self.jobs if job["job_id"] == number)
            changed["excluded_nodes"] = text.partition("excnodelist=")[2]
        return ""

    def look(self, times: int = 1, every: timedelta = timedelta()) -> None:
        for number in range(times):
            self.watch.once(NOW + number * every)

    def refuse(self, *words: str) -> None:
        """Let Slurm refuse every command with one of these words."""

        def ask(command):
            if {*words} & {*command}:
                raise SlurmError("Requested nodes are busy")
            return self.ask(command)

        self.watch.ask = ask

    def silence(self, name: str) -> None:
        """Let the bucket or the cloud not answer."""
        setattr(self.watch, name, Mock(side_effect=CloudError("silent", "SlowDown")))

    def rows(self) -> dict[str, dict]:
        """Return id -> the job as users read it."""
        return {entry["job"]["id"]: entry["job"] for entry in self.kept[-1]["jobs"]}


def failed(**changes: object) -> dict:
    return waits(comment="gpu-fleet:failed-on=i-1", **changes)


def site_of(*jobs: dict, node: str = "IDLE", state: str = "running", **more: object) -> Site:
    """Return a site with one node, in a state for Slurm and one for the cloud."""
    return Site({"i-1": node}, {"i-1": state} if state else {}, list(jobs), **more)


KEPT_AWAY, DOWN = "update jobid=7 excnodelist=i-1", "update nodename=i-1 state=down reason=instance is "
TOLD = "update jobid=7 admincomment=gpu-fleet: "
WHY = "team vision has spent 21 of 20 USD this month, and is frozen"
SPENT = {"vision": TeamLimits(frozen=WHY)}
# before any job runs, Slurm itself gives Resources as the reason of each
RUNS = waits(6, job_state="RUNNING", tres_alloc_str="cpu=2,node=1,gres/gpu=8")


def test_a_look_tells_the_mover_what_waits_and_slurm_what_has_changed():
    """Of each site and how often it is looked at: instances with work, waiting jobs, words of scontrol."""
    limit = {"nlp": TeamLimits(1, 24)}
    spent, task = waits(7, account="vision"), failed(array_job_id=7, array_task_id=3)
    told, own = waits(admin_comment="gpu-fleet: asks for 5"), waits(8, admin_comment="an operator's")
    untold = TOLD.partition("gpu")[0]
    cases = {
        "what waits is said": (Site(jobs=[waits(nodes=2)]), 1, 0, [2]),
        "jobs on an instance that runs keep it": (site_of(node="DOWN"), 5, 1, []),
        "one that the cloud does not know": (site_of(state=""), 1, 0, []),
        "is gone at the second look": (site_of(state=""), 2, 0, [], f"{DOWN}gone"),
        "a frozen team": (Site(jobs=[spent, waits(8)], teams=SPENT), 1, 0, [1], f"{TOLD}{WHY}"),
        "a team at its limit": (Site(jobs=[RUNS, *map(waits, (7, 8, 9))], teams=limit), 1, 0, [1, 1]),
        "a team without a limit": (Site(jobs=[waits()], teams={"nlp": TeamLimits(2)}), 1, 0, [1]),
        "a job is kept away once from where it failed": (site_of(failed()), 3, 0, [2], KEPT_AWAY),
        "another job has that node": (site_of(failed(), waits(8)), 1, 0, [2], KEPT_AWAY),
        "a task is kept away alone": (site_of(task, state=""), 1, 0, [2], "update jobid=7_3 excnodelist=i-1"),
        "what was said goes, but no operator's word": (Site(jobs=[told, own]), 1, 0, [1, 1], untold),
    }
    for state in ("shutting-down", "terminated", "stopping", "stopped"):
        cases[state] = (site_of(node="ALLOCATED", state=state), 1, 0, [], DOWN + state)

    found = {}
    for name, (site, looks, *_) in cases.items():
        site.look(looks)
        said = site.said[-1]["pools"]["train"]
        calls = [call.removeprefix("scontrol ") for call in site.calls]
        found[name] = (site, looks, said["standing"], said["jobs"], *calls)

    assert found == cases


def running_site() -> tuple[Site, dict]:
    """Return a site with a job on two nodes, and what it records of its use."""
    running = {**TWO, "job_state": "RUNNING", "nodes": "i-[1-2]", "user_name": "ada", "name": "a/b=\nStart=0"}
    site, written = Site(nodes={"i-1": "ALLOCATED", "i-2": "ALLOCATED"}, jobs=[running]), {}
    site.watch.use = UseRecord(job_use.DayUse, written.__setitem__)
    return site, written


def test_what_jobs_used_is_recorded_for_the_chargeback_by_slurms_own_json():
    site, written = running_site()

    site.look(times=21, every=timedelta(seconds=15))

    used = {"ada/a/b=?Start=0": 300.0}
    assert written["queue/use/2026-11-23.json"]["instances"] == {"i-1": used, "i-2": used}


@pytest.mark.parametrize("silent", ["policy", "limits", "states", "keep"])
def test_jobs_have_their_time_also_while_the_bucket_or_the_cloud_is_silent(silent):
    site, written = running_site()
    site.look()

    answering = getattr(site.watch, silent)
    site.silence(silent)
    looked = [controller.poll(site.watch, NOW + number * timedelta(minutes=1)) for number in range(1, 11)]
    setattr(site.watch, silent, answering)
    site.watch.once(NOW + timedelta(minutes=15))

    (spent,) = written["queue/use/2026-11-23.json"]["instances"]["i-1"].values()
    assert not any(looked)
    assert spent == site.watch.written.entries[0].run_s == 900


def test_a_bucket_that_refuses_the_record_costs_no_job_its_reason_and_asks_slurm_once():
    site = Site(jobs=[waits(tres_per_node="gres:gpu:a100:8")])
    site.watch.ask = ask = Mock(side_effect=site.ask)
    site.silence("keep")

    with pytest.raises(CloudError, match="silent"):
        site.look()

    (record,) = site.watch.keep.call_args.args
    assert record["jobs"][0]["job"]["reason"].startswith("names gres:gpu:")
    assert (site.watch.keep.call_count, ask.mock_calls.count(call(["squeue", "--json"]))) == (1, 1)


def test_a_denied_record_is_an_alarm_and_no_empty_one():
    denied = Mock(newest=Mock(side_effect=CloudError("queue/use", "AccessDenied")))
    readers = [controller.frozen_teams, controller.kept_records, lambda store: controller.kept_use(store, "")]

    for read in readers:
        with pytest.raises(CloudError, match="queue/use"):
            read(denied)


@pytest.mark.parametrize(
    ("state", "deleted"), [("DOWN", True), ("DOWN+COMPLETING", False), ("ALLOCATED", False)]
)
def test_a_node_is_forgotten_once_slurm_waits_for_it_no_more(state, deleted):
    site = site_of(node=state, state="terminated")
    site.look()
    early = "scontrol delete nodename=i-1" in site.calls

    site.watch.once(NOW + controller.FORGET_AFTER)

    assert not early
    assert ("scontrol delete nodename=i-1" in site.calls) is deleted


@pytest.mark.parametrize("state", ["DOWN", "IDLE"])
def test_a_node_that_slurm_does_not_let_go_keeps_no_job_from_its_instance(state):
    """An operator's reservation of it, say: no job got an instance while that lasted."""
    site = site_of(waits(), node=state, state="terminated")
    site.refuse("nodename=i-1")

    looked = [controller.poll(site.watch, NOW + late) for late in (timedelta(), controller.FORGET_AFTER)]

    assert looked == [True, True]
    assert site.said[-1]["pools"]["train"]["jobs"] == [1]


def test_an_instance_that_the_cloud_names_again_is_not_gone():
    site = Site(nodes={"i-1": "IDLE"})
    for states in ({}, {"i-1": "running"}, {}):
        site.states = states
        site.look()

    assert site.calls == []


def test_other_pools_in_the_policy_are_read_by_slurm_at_a_new_start_and_else_at_the_next_look():
    """A node that runs a job at `scontrol reconfigure` would get no other job (22.05)."""
    site = Site(changed=True)
    site.refuse("shutdown")
    with pytest.raises(SlurmError):
        site.look()
    site.changed, site.watch.ask = False, site.ask

    site.look()
    assert (site.calls, site.said) == (["scontrol shutdown slurmctld"], [])
    site.look()

    assert (site.calls, len(site.said)) == (["scontrol shutdown slurmctld"], 1)


def test_without_a_policy_nothing_is_reconfigured_and_nothing_wanted():
    site = Site(policy=None, changed=True, jobs=[waits()])

    site.look()

    assert (site.calls, site.said) == ([], [])


def test_a_silent_slurm_decides_nothing():
    site = Site(states={})
    site.refuse("scontrol", "squeue")

    with pytest.raises(SlurmError):
        site.look()
    assert site.said == []


def test_the_configuration_is_written_once_and_again_when_pools_change(tmp_path):
    cluster = Cluster("test", "host", "10.0.0.4", {"train": 1000}, "/home/state")
    other = replace(cluster, pools={"dev": 0, "train": 1000})

    assert [controller.lay(each, tmp_path) for each in (cluster, cluster, other)] == [True, False, True]
    assert "PartitionName=dev " in (tmp_path / "slurm.conf").read_text()


def test_the_partition_of_a_pool_that_drains_takes_no_new_jobs_and_is_not_the_default():
    size = NodeSize(8, 96, 1_000_000)
    pools = {"dev": QueuePool(size, 0), "train": QueuePool(size, 4)}

    lines = configuration.slurm_conf(controller.cluster_of("test", "10.0.0.4", pools)).splitlines()

    said = [line.split()[2:5:2] for line in lines if line.startswith("PartitionName")]
    assert said == [["Default=NO", "State=DRAIN"], ["Default=YES", "State=UP"]]


@pytest.mark.parametrize(
    ("plugin", "has_lua", "named"),
    [("", False, "gres:gpu"), ("job_submit_lua", True, "gres:gpu"), ("data_parser_v0_0", False, "gres/gpu")],
)
def test_slurm_is_given_no_plugin_and_no_name_of_gpus_that_its_version_has_not(
    *, tmp_path, monkeypatch, plugin, has_lua, named
):
    """It would not start. 23.11 refused `--ntasks-per-gpu`: "Invalid Trackable RESource (TRES)"."""
    monkeypatch.setattr(controller, "LIBRARIES", tmp_path)
    (tmp_path / "aarch64-linux-gnu/slurm-wlm").mkdir(parents=True)
    (tmp_path / f"aarch64-linux-gnu/slurm-wlm/{plugin}.so").touch()

    controller.lay(controller.cluster_of("test", "10.0.0.4", pools_of(POLICY)), tmp_path / "slurm")

    conf, lua = ((tmp_path / "slurm" / name).read_text() for name in ("slurm.conf", "job_submit.lua"))
    assert ("JobSubmitPlugins=lua" in conf) is has_lua
    assert "function slurm_job_submit(" in lua
    assert f'"{named}:" ..' in lua


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
NUMBERS_OF_23_11 = st.fixed_dictionaries({"set": JSON, "infinite": JSON, "number": JSON})


@given(field=st.sampled_from(sorted(TWO)), value=JSON | NUMBERS_OF_23_11 | st.just(...))
@settings(max_examples=50, deadline=None)
def test_no_field_of_a_job_ends_a_look_whatever_slurm_writes_there(field, value):
    """The demand of another job is still reported. ``...`` stands for a missing field."""
    other = {**waits(8), field: value}
    if value is ...:
        del other[field]
    site = Site(jobs=[waits(9, priority=10**6), other])

    assert controller.poll(site.watch, NOW)

    assert site.said[0]["pools"]["train"]["jobs"][:1] == [1]
    assert "9" in site.rows()


LIMITS = {"users": [], "teams": {"nlp": {"share": 2, "max_gpus": 8}}}
RECORDS = {GROWTH: StoredObject({"teams": {"vision": WHY}}, "v"), ACCOUNTS: StoredObject(LIMITS, "v")}


def records(damaged=""):
    def newest(key, at_most=None):
        if key == damaged:
            raise CloudError("no JSON", "Malformed")
        return RECORDS[key]

    return Mock(newest=newest)


def test_limits_are_read_from_what_stack_and_mover_say_of_teams():
    assert controller.limits_of(records()) == {"nlp": TeamLimits(2, 8), "vision": TeamLimits(frozen=WHY)}


@pytest.mark.parametrize("object_key", [GROWTH, ACCOUNTS])
def test_a_report_that_is_damaged_thaws_no_team(object_key):
    with pytest.raises(CloudError, match="no JSON"):
        controller.limits_of(records(object_key))


@pytest.mark.parametrize("silent", ["policy", "limits", "states", "say"])
def test_why_a_job_waits_is_still_said_while_the_bucket_or_the_cloud_is_silent(silent):
    frozen, starts = waits(7, account="vision"), waits(8, nodes=9)
    site = site_of(frozen, starts, teams=SPENT)
    site.look()
    before = site.rows()["8"]["reason"]

    starts["job_state"], starts["state_reason"] = "RUNNING", "None"
    site.silence(silent)
    controller.poll(site.watch, NOW)

    assert "asks for 9 instances" in before
    assert {job: row["reason"] for job, row in site.rows().items()} == {"7": WHY, "8": ""}
    assert len(site.kept) == 2


def test_a_poll_keeps_few_jobs_away_and_the_next_ones_the_rest_whatever_fails(monkeypatch):
    """Each is a call of Slurm: hundreds of failed jobs would keep the poll from reporting for minutes."""
    monkeypatch.setattr(slurm, "MOST_CALLS", 2)
    jobs = [failed(job_id=number) for number in range(10, 15)]
    site = site_of(*jobs)
    site.refuse("jobid=10", "jobid=11")
    kept = []
    for _ in range(4):
        site.look()
        kept.append([job["job_id"] for job in jobs if job["excluded_nodes"]])

    assert kept == [[], [12, 13], [12, 13], [12, 13, 14]]


def test_once_its_instance_is_gone_nothing_is_kept_away_from_it():
    site = site_of(failed())
    site.look()
    site.states = {"i-1": "terminated"}

    site.look(2)

    assert site.calls.count("scontrol update jobid=7 excnodelist=") == 1


def test_what_a_user_excludes_stays_excluded_beside_where_the_job_failed():
    """The controller's list used to replace the user's; neither node counts for the job."""
    nodes = {"i-1": "IDLE", "i-2": "IDLE", "i-3": "ALLOCATED"}
    policy = {"pools": {"train": {"capacity": SIZE | {"max_size": 4}}}}
    states = dict.fromkeys(nodes, "running")
    site = Site(nodes, states, [failed(excluded_nodes="i-2")], policy=policy)

    site.look(2)

    assert site.calls == ["scontrol update jobid=7 excnodelist=i-2,i-1"]
    assert site.said[1]["pools"]["train"] == {"standing": 1, "jobs": [3], "nodes": [*nodes]}


def test_a_job_that_slurm_does_not_let_change_is_tried_at_the_next_look():
    site = site_of(failed())
    site.refuse("jobid=7")
    site.look()
    site.watch.ask = site.ask

    site.look()

    assert len(site.kept) == 2
    assert site.calls == [f"scontrol {KEPT_AWAY}"]


def test_a_job_that_cannot_be_read_is_skipped_and_an_alarm_for_the_mover(caplog):
    site = Site(jobs=[waits(7, tasks="many"), waits(8)])

    site.look()

    assert site.said[0]["pools"]["train"]["jobs"] == [1]
    assert (site.said[0]["unread"], "job 7: tasks = 'many'" in site.said[0]["unread_why"]) == (1, True)
    assert "event=queue-job-unread" in caplog.text


def test_users_read_of_each_job_what_the_controller_saw_and_how_many_instances_it_waits_for():
    """Slurm reports one node for --gpus=16, whatever its nodes have."""
    many = waits(8, tres_per_node="", tres_per_job="gres:gpu:16", max_nodes=0)
    runs = failed(job_state="RUNNING", state_reason="None")
    site = Site(jobs=[runs, many, waits(9, account="vision")], teams=SPENT)

    site.look()

    rows = [
        [row[key] for key in ("id", "account", "state", "nodes", "reason")] for row in site.rows().values()
    ]
    assert rows == [
        ["7", "ada", "RUNNING", 2, ""],
        ["8", "ada", "PENDING", 2, "Resources"],
        ["9", "ada", "PENDING", 2, WHY],
    ]


def test_a_fault_of_ours_in_a_look_ends_no_watch(caplog):
    site = Site(jobs=[waits()])
    site.watch.keep = {}.__getitem__

    assert not controller.poll(site.watch, NOW)
    site.watch.keep = site.kept.append
    assert controller.poll(site.watch, NOW)
    assert "event=queue-look-failed" in caplog.text
    assert "TypeError" in caplog.text


def test_a_policy_that_does_not_say_what_instances_have_is_an_error_that_names_the_field():
    site = Site(policy={"pools": {"train": {"capacity": {"queue_gpus": 8}}}})

    with pytest.raises(PolicyUnreadError, match="queue_cpus"):
        site.look()


@pytest.mark.parametrize(
    ("opens_s", "is_there", "waited_s"), [(0, True, 0), (20, True, 20), (999, False, 60)]
)
def test_slurmctld_starts_after_slurmdbd_or_a_minute_later_without(opens_s, is_there, waited_s):
    waits_s, asked = [], set()

    def connect(address, timeout):
        asked.add(address)
        if sum(waits_s) < opens_s:
            raise ConnectionRefusedError(111, "Connection refused")
        return Mock()

    answers = controller.wait_for_accounts("10.0.0.4", lambda: sum(waits_s), waits_s.append, connect)

    assert (answers, sum(waits_s), asked) == (is_there, waited_s, {("10.0.0.4", 6819)})
