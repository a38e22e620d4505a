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


def nodes(state: str, reason: str = "") -> list[slurm.Node]:
    return slurm.nodes(lambda _: NODE.format(name="i-1", state=state, reason=reason) + "\n\n")


BUSY = "ALLOCATED+DYNAMIC_NORM", "IDLE+DRAIN", "DOWN", "IDLE+COMPLETING", "IDLE*", "IDLE+INVALID_REG"
# state, reason -> whether it is free, whether a part of it is, the reason without who gave it
NODES = {
    ("IDLE+DYNAMIC_NORM", ""): (True, False, ""),
    ("MIXED+DYNAMIC_NORM", ""): (False, True, ""),
    **{(state, ""): (False, False, "") for state in BUSY},
    ("IDLE+DRAIN", "gpu-fleet: boot check has not passed"): (
        *(False, False),
        "gpu-fleet: boot check has not passed",
    ),
    # words of a reason are no fields
    ("IDLE+DRAIN", "was State=IDLE RealMemory=x"): (False, False, "was State=IDLE RealMemory=x"),
}


def test_a_node_is_known_by_its_instance_and_its_pool_with_what_jobs_have_left_of_it():
    found = {}
    for state, reason in NODES:
        (node,) = nodes(state, f"Reason={reason} [root@2026-11-23T09:52:07]" if reason else "")
        found[state, reason] = node.is_free, node.is_partly_free, node.reason
        assert (node.name, node.pool, node.left) == ("i-1", "train", NodeSize(3, 90, 500_000))

    assert found == NODES


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
