"""What Slurm's commands print, as Debian 12's 22.05 printed it here."""

import pytest

from image.queue import slurm
from image.queue.errors import SlurmError

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=2  CPUAlloc=0 AvailableFeatures=train ActiveFeatures=train "
    "Gres=gpu:1 NodeAddr=10.0.16.5 NodeHostName=ip-10-0-16-5 Version=22.05.8 OS=Linux 6.18 #1 SMP "
    "RealMemory=24105 State={state} ThreadsPerCore=1 Partitions=train {reason}"
)
JOB = (
    "JobId={id} JobName=digits-20261123-100000 UserId=ada(5001) GroupId=ada(5001) MCS_label=N/A Nice=0 "
    "Account=(null) QOS=(null) JobState={state} Reason=BeginTime Dependency=(null) Requeue=1 Restarts=1 "
    "BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:00 TimeLimit=UNLIMITED Partition=train "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList= BatchHost=i-1 NumNodes=1-1 Comment={comment} "
    "Command=(null) WorkDir=/home/ada StdErr=/home/ada/d-7.log StdOut=/home/ada/d-7.log Power="
)
REASON = "Reason=gpu-fleet: boot check has not passed [root@2026-11-23T09:52:07]"


def nodes(state: str, reason: str = "") -> list[slurm.Node]:
    return slurm.nodes(lambda _: NODE.format(name="i-1", state=state, reason=reason) + "\n\n")


def test_a_node_is_known_by_its_instance_and_its_pool():
    (node,) = nodes("IDLE+DYNAMIC_NORM")

    assert (node.name, node.pool, node.is_free) == ("i-1", "train", True)


@pytest.mark.parametrize(
    "state",
    ["ALLOCATED+DYNAMIC_NORM", "MIXED", "IDLE+DRAIN", "DOWN", "IDLE+COMPLETING", "IDLE*", "IDLE+INVALID_REG"],
)
def test_a_node_that_takes_no_job_is_not_free(state):
    (node,) = nodes(state)

    assert not node.is_free


def test_a_reason_is_read_without_who_gave_it():
    (node,) = nodes("IDLE+DRAIN", REASON)

    assert node.reason == "gpu-fleet: boot check has not passed"


def test_without_nodes_there_are_none():
    assert slurm.nodes(lambda _: "No nodes in the system\n") == []


def test_jobs_that_wait_for_room_are_counted_and_no_others():
    lines = [
        "7|train|2|N/A|nlp|PartitionConfig",
        "8|train|1|gres:gpu:a100:4|nlp|Resources",
        "9|train|1|N/A|nlp|Dependency",
        "10|train|1|gres:gpu:8|nlp|AssocGrpGRES",
    ]

    assert slurm.waiting_jobs(lambda _: "\n".join(lines) + "\n") == [
        slurm.WaitingJob("7", "train", 2, 0, "nlp"),
        slurm.WaitingJob("8", "train", 1, 4, "nlp"),
    ]


def test_the_gpus_of_a_team_are_those_of_all_instances_of_its_jobs():
    said = "nlp|2|gres:gpu:4\nnlp|1|N/A\nvision|1|gres/gpu:a100:8\n"

    assert slurm.gpus_at_work(lambda _: said) == {"nlp": 8, "vision": 8}


def test_a_command_that_fails_says_why():
    with pytest.raises(SlurmError, match="exit status 1"):
        slurm.run(["false"])


def test_an_absent_slurm_is_named():
    with pytest.raises(SlurmError, match="no-such-scontrol"):
        slurm.run(["no-such-scontrol", "show"])


def test_a_job_is_read_with_its_comment_and_its_log():
    line = JOB.format(id="7", state="PENDING", comment="gpu-fleet")

    (job,) = slurm.jobs(lambda _: f"{line}\n\n")

    assert (job.id, job.account, job.pool, job.nodes) == ("7", "ada", "train", 1)
    assert (job.state, job.reason, job.on, job.restarts) == ("PENDING", "BeginTime", "", 1)
    assert (job.log, job.comment) == ("/home/ada/d-7.log", "gpu-fleet")


def test_without_jobs_there_are_none():
    assert slurm.jobs(lambda _: "No jobs in the system\n") == []


@pytest.mark.parametrize(
    ("saves", "command"), [(True, "scancel --batch --signal=USR1 7"), (False, "scancel 7")]
)
def test_a_job_that_can_save_is_asked_to(saves, command):
    said = []

    slurm.cancel("7", saves=saves, ask=lambda words: said.append(" ".join(words)) or "")

    assert said == [command]
