"""A poll of the controller: partitions, lost instances and waiting jobs."""

import json
from copy import deepcopy
from dataclasses import dataclass, field
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


def test_what_waits_is_said_to_the_mover():
    site = Site(jobs=[waits(nodes=2)])

    site.look()

    assert site.said[0]["pools"] == {"train": {"standing": 0, "jobs": [2]}}


def test_what_jobs_used_is_recorded_for_the_chargeback_by_slurms_own_json():
    written = {}
    running = {**TWO, "job_state": "RUNNING", "nodes": "i-[1-2]", "user_name": "ada", "name": "a/b=\nStart=0"}
    site = Site(nodes={"i-1": "ALLOCATED", "i-2": "ALLOCATED"}, jobs=[running])
    site.watch.use = UseRecord(job_use.DayUse, written.__setitem__)

    site.look(times=21, every=timedelta(seconds=15))

    used = {"ada/a/b=?Start=0": 300.0}
    assert written["queue/use/2026-11-23.json"]["instances"] == {"i-1": used, "i-2": used}


@pytest.mark.parametrize("silent", ["policy", "limits", "states", "keep"])
def test_jobs_have_their_time_also_while_the_bucket_or_the_cloud_is_silent(silent):
    running, written = {**TWO, "job_state": "RUNNING", "nodes": "i-[1-2]", "user_name": "ada"}, {}
    site = Site(nodes={"i-1": "ALLOCATED", "i-2": "ALLOCATED"}, jobs=[running])
    site.watch.use = UseRecord(job_use.DayUse, written.__setitem__)
    site.look()

    answering = getattr(site.watch, silent)
    setattr(site.watch, silent, Mock(side_effect=CloudError("silent", "SlowDown")))
    looked = [controller.poll(site.watch, NOW + number * timedelta(minutes=1)) for number in range(1, 11)]
    setattr(site.watch, silent, answering)
    site.watch.once(NOW + timedelta(minutes=15))

    (spent,) = written["queue/use/2026-11-23.json"]["instances"]["i-1"].values()
    assert not any(looked)
    assert spent == site.watch.written.entries[0].run_s == 900


def test_a_bucket_that_refuses_the_record_costs_no_job_its_reason_and_asks_slurm_once():
    site, refused = Site(jobs=[waits(tres_per_node="gres:gpu:a100:8")]), []
    ask = Mock(side_effect=site.ask)
    site.watch.ask = ask

    def refuse(record):
        refused.append(record)
        raise CloudError("silent", "SlowDown")

    site.watch.keep = refuse

    with pytest.raises(CloudError, match="silent"):
        site.look()

    assert [record["jobs"][0]["job"]["reason"][:15] for record in refused] == ["names gres:gpu:"]
    assert ask.mock_calls.count(call(["squeue", "--json"])) == 1


def test_a_denied_record_is_an_alarm_and_no_empty_one():
    denied = Mock(newest=Mock(side_effect=CloudError("queue/use", "AccessDenied")))
    readers = [controller.frozen_teams, controller.kept_records, lambda store: controller.kept_use(store, "")]

    for read in readers:
        with pytest.raises(CloudError, match="queue/use"):
            read(denied)


@pytest.mark.parametrize("state", ["shutting-down", "terminated", "stopping", "stopped"])
def test_the_jobs_of_an_instance_that_runs_no_more_are_put_back_at_once(state):
    site = Site(nodes={"i-1": "ALLOCATED"}, states={"i-1": state})

    site.look()

    assert site.calls == [f"scontrol update nodename=i-1 state=down reason=instance is {state}"]
    assert site.said[0]["pools"]["train"]["standing"] == 0


def test_a_running_instance_keeps_its_node():
    site = Site(nodes={"i-1": "DOWN"}, states={"i-1": "running"})

    site.look(5)

    assert site.calls == []


def test_an_instance_that_the_cloud_does_not_know_is_gone_at_the_second_look():
    site = Site(nodes={"i-1": "IDLE"})
    site.look()
    assert site.calls == []

    site.look()

    assert site.calls == ["scontrol update nodename=i-1 state=down reason=instance is gone"]


@pytest.mark.parametrize(
    ("state", "deleted"), [("DOWN", True), ("DOWN+COMPLETING", False), ("ALLOCATED", False)]
)
def test_a_node_is_forgotten_once_slurm_waits_for_it_no_more(state, deleted):
    site = Site(nodes={"i-1": state}, states={"i-1": "terminated"})
    site.look()
    early = "scontrol delete nodename=i-1" in site.calls

    site.watch.once(NOW + controller.FORGET_AFTER)

    assert not early
    assert ("scontrol delete nodename=i-1" in site.calls) is deleted


@pytest.mark.parametrize("state", ["DOWN", "IDLE"])
def test_a_node_that_slurm_does_not_let_go_keeps_no_job_from_its_instance(state):
    """An operator's reservation of it, say: no job got an instance while that lasted."""
    site = Site(nodes={"i-1": state}, states={"i-1": "terminated"}, jobs=[waits()])
    ask = site.watch.ask

    def refuses(command):
        if "nodename=i-1" in command:
            raise SlurmError("slurm_delete_node error: Requested nodes are busy")
        return ask(command)

    site.watch.ask = refuses
    looked = [controller.poll(site.watch, NOW + late) for late in (timedelta(), controller.FORGET_AFTER)]

    assert looked == [True, True]
    assert site.said[-1]["pools"]["train"]["jobs"] == [1]


def test_an_instance_that_the_cloud_names_again_is_not_gone():
    site = Site(nodes={"i-1": "IDLE"})
    site.look()
    site.states = {"i-1": "running"}
    site.look()
    site.states = {}

    site.look()

    assert site.calls == []


def test_other_pools_in_the_policy_are_read_by_slurm_at_a_new_start():
    """A node that runs a job at `scontrol reconfigure` would get no other job (22.05)."""
    site = Site(changed=True)

    site.look()

    assert site.calls == ["scontrol shutdown slurmctld"]
    assert site.said == []


def test_a_configuration_that_slurm_did_not_read_is_read_at_the_next_look():
    site = Site(changed=True)
    ask, site.watch.ask = site.watch.ask, lambda _: (_ for _ in ()).throw(SlurmError("connect failure"))
    with pytest.raises(SlurmError):
        site.look()
    site.changed, site.watch.ask = False, ask

    site.look(2)

    assert site.calls == ["scontrol shutdown slurmctld"]


def test_without_a_policy_nothing_is_reconfigured_and_nothing_wanted():
    site = Site(policy=None, changed=True, jobs=[waits()])

    site.look()

    assert (site.calls, site.said) == ([], [])


def test_a_silent_slurm_decides_nothing():
    site = Site(states={})

    def silent(_):
        raise SlurmError("scontrol: Unable to contact slurm controller")

    site.watch.ask = silent

    with pytest.raises(SlurmError):
        site.look()
    assert site.said == []


def test_the_configuration_is_written_once_and_again_when_pools_change(tmp_path):
    cluster = Cluster("test", "host", "10.0.0.4", {"train": 1000}, "/home/state")

    assert controller.lay(cluster, tmp_path)
    assert not controller.lay(cluster, tmp_path)
    assert controller.lay(
        Cluster("test", "host", "10.0.0.4", {"dev": 0, "train": 1000}, "/home/state"), tmp_path
    )
    assert "PartitionName=dev " in (tmp_path / "slurm.conf").read_text()


def test_the_partition_of_a_pool_that_drains_takes_no_new_jobs_and_is_not_the_default():
    size = NodeSize(8, 96, 1_000_000)
    pools = {"dev": QueuePool(size, 0), "train": QueuePool(size, 4)}

    lines = configuration.slurm_conf(controller.cluster_of("test", "10.0.0.4", pools)).splitlines()

    said = [line.split()[2::2] for line in lines if line.startswith("PartitionName")]
    assert [(words[0], words[1]) for words in said] == [
        ("Default=NO", "State=DRAIN"),
        ("Default=YES", "State=UP"),
    ]


@pytest.mark.parametrize("is_there", [True, False])
def test_slurm_is_given_no_plugin_that_the_controller_has_not(tmp_path, monkeypatch, is_there):
    """Slurm would not start."""
    monkeypatch.setattr(controller, "LIBRARIES", tmp_path)
    if is_there:
        (tmp_path / "aarch64-linux-gnu/slurm-wlm").mkdir(parents=True)
        (tmp_path / "aarch64-linux-gnu/slurm-wlm/job_submit_lua.so").touch()
    pools = pools_of(POLICY)

    controller.lay(controller.cluster_of("test", "10.0.0.4", pools), tmp_path / "slurm")

    assert ("JobSubmitPlugins=lua" in (tmp_path / "slurm/slurm.conf").read_text()) is is_there
    assert "function slurm_job_submit(" in (tmp_path / "slurm/job_submit.lua").read_text()


@pytest.mark.parametrize(("parser", "named"), [("", "gres:gpu"), ("data_parser_v0_0_40.so", "gres/gpu")])
def test_gpus_are_counted_under_the_name_that_slurms_version_takes(tmp_path, monkeypatch, parser, named):
    """23.11 refused each job of `--ntasks-per-gpu`: "Invalid Trackable RESource (TRES) specification"."""
    monkeypatch.setattr(controller, "LIBRARIES", tmp_path)
    (tmp_path / "aarch64-linux-gnu/slurm-wlm").mkdir(parents=True)
    if parser:
        (tmp_path / "aarch64-linux-gnu/slurm-wlm" / parser).touch()
    pools = pools_of(POLICY)

    controller.lay(controller.cluster_of("test", "10.0.0.4", pools), tmp_path / "slurm")

    assert f'"{named}:" ..' in (tmp_path / "slurm/job_submit.lua").read_text()


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
    assert "9" in {entry["job"]["id"] for entry in site.kept[0]["jobs"]}


WHY = "team vision has spent 21 of 20 USD this month, and is frozen"


class Records:
    def newest(self, key, at_most=None):
        frozen = {"teams": {"vision": WHY}}
        limits = {"users": [], "teams": {"nlp": {"share": 2, "max_gpus": 8}}}
        return StoredObject(frozen if key == GROWTH else limits, "v")


def test_limits_are_read_from_what_stack_and_mover_say_of_teams():
    assert controller.limits_of(Records()) == {"nlp": TeamLimits(2, 8), "vision": TeamLimits(frozen=WHY)}


@pytest.mark.parametrize("object_key", [GROWTH, ACCOUNTS])
def test_a_report_that_is_damaged_thaws_no_team(object_key):
    class Damaged(Records):
        def newest(self, key, at_most=None):
            if key == object_key:
                raise CloudError("no JSON", "Malformed")
            return super().newest(key, at_most)

    with pytest.raises(CloudError, match="no JSON"):
        controller.limits_of(Damaged())


def test_a_job_of_a_frozen_team_asks_for_no_instance_and_says_why_while_another_team_s_does():
    site = Site(jobs=[waits(7, account="vision"), waits(8)], teams={"vision": TeamLimits(frozen=WHY)})

    site.look()

    reasons = {entry["job"]["id"]: entry["job"]["reason"] for entry in site.kept[0]["jobs"]}
    assert site.said[0]["pools"]["train"]["jobs"] == [1]
    assert reasons == {"7": WHY, "8": "Resources"}
    assert site.calls == [f"scontrol update jobid=7 admincomment=gpu-fleet: {WHY}"]


@pytest.mark.parametrize("silent", ["policy", "limits", "states", "say"])
def test_why_a_job_waits_is_still_said_while_the_bucket_or_the_cloud_is_silent(silent):
    frozen, starts = waits(7, account="vision"), waits(8, nodes=9)
    site = Site(nodes={"i-1": "IDLE"}, states={"i-1": "running"}, jobs=[frozen, starts])
    site.teams = {"vision": TeamLimits(frozen=WHY)}
    site.look()
    before = site.kept[0]["jobs"][1]["job"]["reason"]

    starts["job_state"], starts["state_reason"] = "RUNNING", "None"
    setattr(site.watch, silent, Mock(side_effect=CloudError("silent", "SlowDown")))
    controller.poll(site.watch, NOW)

    reasons = {entry["job"]["id"]: entry["job"]["reason"] for entry in site.kept[-1]["jobs"]}
    assert "asks for 9 instances" in before
    assert reasons == {"7": WHY, "8": ""}
    assert len(site.kept) == 2


def test_the_mover_hears_of_no_job_that_its_teams_limit_keeps_waiting():
    """Before any job runs, Slurm itself gives Resources as the reason of each."""
    runs = waits(6, job_state="RUNNING", tres_alloc_str="cpu=2,node=1,gres/gpu=8")
    site = Site(jobs=[runs, waits(7), waits(8), waits(9)], teams={"nlp": TeamLimits(1, 24)})

    site.look()

    assert site.said[0]["pools"]["train"]["jobs"] == [1, 1]


def test_a_team_without_a_limit_is_not_counted():
    site = Site(jobs=[waits()], teams={"nlp": TeamLimits(2)})

    site.look()

    assert site.said[0]["pools"]["train"]["jobs"] == [1]


def failed(state: str = "PENDING") -> dict:
    return waits(job_state=state, comment="gpu-fleet:failed-on=i-1")


def test_a_job_that_waits_is_kept_away_once_from_the_node_on_which_it_failed():
    site = Site(nodes={"i-1": "IDLE"}, states={"i-1": "running"}, jobs=[failed()])

    site.look(3)

    assert site.calls == ["scontrol update jobid=7 excnodelist=i-1"]


def test_a_poll_keeps_few_jobs_away_and_the_next_ones_the_rest_whatever_fails(monkeypatch):
    """Each is a call of Slurm: hundreds of failed jobs would keep the poll from reporting for minutes."""
    monkeypatch.setattr(slurm, "MOST_CALLS", 2)
    jobs = [{**failed(), "job_id": number} for number in range(10, 15)]
    site = Site(nodes={"i-1": "IDLE"}, states={"i-1": "running"}, jobs=jobs)
    ask = site.watch.ask

    def refuses(command):
        if {"jobid=10", "jobid=11"} & {*command}:
            raise SlurmError("Slurm temporarily unable to accept job")
        return ask(command)

    site.watch.ask = refuses
    kept = []
    for _ in range(4):
        site.look()
        kept.append([job["job_id"] for job in jobs if job["excluded_nodes"]])

    assert kept == [[], [12, 13], [12, 13], [12, 13, 14]]


def test_a_node_that_a_job_is_kept_away_from_is_none_for_this_job():
    site = Site(nodes={"i-1": "IDLE"}, states={"i-1": "running"}, jobs=[failed()])
    site.jobs.append(waits(8))

    site.look()

    assert site.said[0]["pools"] == {"train": {"standing": 0, "jobs": [2]}}  # the other job has it


def test_a_task_that_failed_is_kept_away_alone_though_its_number_is_the_arrays():
    site = Site(nodes={"i-1": "IDLE"}, jobs=[{**failed(), "array_job_id": 7, "array_task_id": 3}])

    site.look()

    assert site.calls == ["scontrol update jobid=7_3 excnodelist=i-1"]


def test_once_its_instance_is_gone_nothing_is_kept_away_from_it():
    site = Site(nodes={"i-1": "IDLE"}, states={"i-1": "running"}, jobs=[failed()])
    site.look()
    site.states = {"i-1": "terminated"}

    site.look(2)

    assert site.calls.count("scontrol update jobid=7 excnodelist=") == 1


def test_what_a_user_excludes_stays_excluded_beside_where_the_job_failed():
    """The controller's list used to replace the user's; neither node counts for the job."""
    nodes = {"i-1": "IDLE", "i-2": "IDLE", "i-3": "ALLOCATED"}
    job = waits(comment="gpu-fleet:failed-on=i-1", excluded_nodes="i-2")
    policy = deepcopy(POLICY)
    policy["pools"]["train"]["capacity"]["max_size"] = 4
    site = Site(nodes=nodes, states=dict.fromkeys(nodes, "running"), jobs=[job], policy=policy)

    site.look(2)

    assert site.calls == ["scontrol update jobid=7 excnodelist=i-2,i-1"]
    assert site.said[1]["pools"]["train"] == {"standing": 1, "jobs": [3]}


def test_a_job_that_slurm_does_not_let_change_is_tried_at_the_next_look():
    site = Site(nodes={"i-1": "IDLE"}, states={"i-1": "running"}, jobs=[failed()])
    ask = site.watch.ask

    def refuses(command):
        if "jobid=7" in command:
            raise SlurmError("Job is no longer pending execution")
        return ask(command)

    site.watch.ask = refuses
    site.look()
    site.watch.ask = ask

    site.look()

    assert len(site.kept) == 2
    assert site.calls == ["scontrol update jobid=7 excnodelist=i-1"]


def test_a_job_that_cannot_be_read_is_skipped_and_an_alarm_for_the_mover(caplog):
    site = Site(jobs=[waits(7, tasks="many"), waits(8)])

    site.look()

    assert site.said[0]["pools"]["train"]["jobs"] == [1]
    assert (site.said[0]["unread"], "job 7: tasks = 'many'" in site.said[0]["unread_why"]) == (1, True)
    assert "event=queue-job-unread" in caplog.text


def test_a_job_that_no_instance_can_run_is_said_to_be_once_and_buys_nothing():
    site = Site(jobs=[waits(tres_per_node="gres:gpu:a100:8")])
    site.look()
    why = site.kept[0]["jobs"][0]["job"]["reason"]
    site.jobs[0]["admin_comment"] = f"gpu-fleet: {why}"

    site.look()

    assert "names gres:gpu:a100:8" in why
    assert site.calls == [f"scontrol update jobid=7 admincomment=gpu-fleet: {why}"]
    assert [said["pools"]["train"]["jobs"] for said in site.said] == [[], []]


def test_users_read_how_many_instances_a_job_waits_for():
    """Slurm reports one node for --gpus=16, whatever its nodes have."""
    site = Site(jobs=[waits(tres_per_node="", tres_per_job="gres:gpu:16", max_nodes=0)])

    site.look()

    assert site.kept[0]["jobs"][0]["job"]["nodes"] == 2


def test_what_was_said_of_a_job_goes_once_an_instance_can_run_it():
    site = Site(
        jobs=[waits(admin_comment="gpu-fleet: asks for 5 instances"), waits(8, admin_comment="an operator's")]
    )

    site.look()

    assert site.calls == ["scontrol update jobid=7 admincomment="]


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


def test_users_read_of_each_job_what_the_controller_saw():
    site = Site(jobs=[failed("RUNNING")])

    site.look()

    (entry,) = site.kept[0]["jobs"]
    assert (entry["job"]["id"], entry["job"]["account"], entry["job"]["state"]) == ("7", "ada", "RUNNING")


@dataclass
class Slurmdbd:
    """Fake of slurmdbd's port for the start of slurmctld.

    Attributes:
        opens_s: time when it answers, on a clock that only waits advance.
    """

    opens_s: float
    now_s: float = 0.0
    asked: list[tuple[str, int]] = field(default_factory=list)

    def connect(self, address, timeout):
        self.asked.append(address)
        if self.now_s < self.opens_s:
            raise ConnectionRefusedError(111, "Connection refused")
        return self

    def close(self):
        """Close; nothing was sent."""

    def wait(self, seconds):
        self.now_s += seconds


@pytest.mark.parametrize(
    ("opens_s", "is_there", "waited_s"), [(0, True, 0), (20, True, 20), (999, False, 60)]
)
def test_slurmctld_starts_after_slurmdbd_or_a_minute_later_without(opens_s, is_there, waited_s):
    slurmdbd = Slurmdbd(opens_s)

    answers = controller.wait_for_accounts(
        "10.0.0.4", lambda: slurmdbd.now_s, slurmdbd.wait, slurmdbd.connect
    )

    assert answers is is_there
    assert slurmdbd.now_s == waited_s
    assert set(slurmdbd.asked) == {("10.0.0.4", 6819)}
