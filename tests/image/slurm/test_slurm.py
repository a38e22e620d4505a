"""Output of Slurm's commands of Debian 12's 22.05, recorded here."""

import pytest

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm import slurm
from gpu_fleet_image.slurm.sizes import NodeSize

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=2  CPUAlloc=6 CPUEfctv=96 CPUTot=96 CPULoad=1.93 "
    "AvailableFeatures=train ActiveFeatures=train Gres=gpu:8 GresDrain=N/A GresUsed=gpu:5 "
    "NodeAddr=10.0.16.5 NodeHostName=ip-10-0-16-5 Version=22.05.8 OS=Linux 6.18 #1 SMP "
    "RealMemory=1100000 AllocMem=600000 FreeMem=14224 State={state} ThreadsPerCore=1 Partitions=train "
    "{reason}"
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


def test_what_jobs_have_left_of_a_node_is_read():
    (node,) = nodes("MIXED+DYNAMIC_NORM")

    assert node.is_partly_free
    assert node.left == NodeSize(3, 90, 500_000)


def test_words_of_a_reason_are_no_fields():
    (node,) = nodes("IDLE+DRAIN", "Reason=was State=IDLE RealMemory=x [root@2026-11-23T09:52:07]")

    assert (node.is_free, node.left.memory_mib) == (False, 500_000)


def test_without_nodes_there_are_none():
    assert slurm.nodes(lambda _: "No nodes in the system\n") == []


def test_a_command_that_fails_says_why():
    with pytest.raises(SlurmError, match="exit status 1"):
        slurm.run(["false"])


def test_bytes_that_are_no_text_are_read_all_the_same():
    assert slurm.run(["printf", r"a\377b"]) == "a\N{REPLACEMENT CHARACTER}b"


def test_an_absent_slurm_is_named():
    with pytest.raises(SlurmError, match="no-such-scontrol"):
        slurm.run(["no-such-scontrol", "show"])


@pytest.mark.parametrize(
    ("saves", "command"), [(True, "scancel --batch --signal=USR1 7"), (False, "scancel 7")]
)
def test_a_job_that_can_save_is_asked_to(saves, command):
    said = []

    slurm.cancel("7", saves=saves, ask=lambda words: said.append(" ".join(words)) or "")

    assert said == [command]
