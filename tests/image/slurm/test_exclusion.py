"""Nodes that a job must avoid."""

import time
from dataclasses import replace

import pytest

from gpu_fleet_image.slurm.answers import ListedJob
from gpu_fleet_image.slurm.exclusion import exclusions, failed_on, named
from gpu_fleet_image.slurm.sizes import JobRequest
from gpu_fleet_image.slurm.slurm import Node
from tests.image.slurm.test_job_records import RUNNING

NODES = [Node(f"i-{number}", "train", frozenset({"IDLE"})) for number in (1, 2, 3)]
OTHERS = ("", "gpu-fleet", "mine:failed-on=i-1", "x gpu-fleet:failed-on=i-1")  # comments that name nothing
WAITS = replace(RUNNING, state="PENDING", nodes=1, comment="gpu-fleet:failed-on=i-1,-,i-2")


RUNS, ALL_BUT_ONE = replace(WAITS, state="RUNNING"), replace(WAITS, nodes=7)
LEFT = [NODES[2], replace(NODES[0], pool="dev")]
# A job, the pool's size and nodes, what its user excludes -> where it does not start, the newest first.
KEPT_AWAY = [
    ((WAITS, 8, NODES, ""), ("i-2", "i-1")),
    ((RUNS, 8, NODES, ""), None),
    # never is a pool left too small for the job
    ((WAITS, 2, NODES, ""), ("i-2",)),
    ((replace(WAITS, nodes=2), 2, NODES, ""), None),
    # what its user excluded stays so and comes first
    ((WAITS, 8, NODES, "i-3"), ("i-3", "i-2", "i-1")),
    ((WAITS, 2, NODES, "i-[3-4]"), ("i-3",)),
    # where the controller wrote at an earlier poll that the job failed is no list of its user's
    ((ALL_BUT_ONE, 8, NODES, "i-[1-2]"), ("i-2",)),
    # an instance that is gone or of another pool is none
    ((WAITS, 8, LEFT, ""), None),
    *(((replace(WAITS, comment=comment), 8, NODES, ""), None) for comment in OTHERS),
]


def exclusion(job, most, nodes, excluded):
    return exclusions([ListedJob(job, JobRequest(), excluded=excluded)], nodes, {"train": most}).get("7")


def test_a_job_that_waits_is_kept_away_from_where_it_failed_as_far_as_its_pool_allows():
    assert [(given, exclusion(*given)) for given, _ in KEPT_AWAY] == KEPT_AWAY
    assert {failed_on(comment) for comment in OTHERS} == {()}


NAMED = {
    "i-1,i-3": "i-1 i-3",
    "i-[1-2,10]": "i-1 i-2 i-10",
    "i-0a[01-02]": "i-0a01",
    **dict.fromkeys(("i-0a[1-2]", "", "i-[1-", "i-[-,]", "[1-2]"), ""),
    # what is no list names no node and ends no poll
    **dict.fromkeys(("i-[1-2-3]", "i-[-1]", "i-[1,,2]", f"i-[{'1' * 5000}]"), ""),
}


def test_nodes_are_those_that_a_list_of_slurms_names():
    there = ["i-1", "i-2", "i-3", "i-10", "i-0a01"]

    assert {hosts: " ".join(named(hosts, there)) for hosts in NAMED} == NAMED


@pytest.mark.parametrize("text", ["a[", "a[1,", "[a", "a[1]["])
def test_a_list_that_a_user_made_long_is_read_in_time_that_grows_with_its_length(text):
    """A bracket that never closes was looked for to the end again and again: seconds in each poll."""
    hosts = text * 20_000
    began = time.process_time()

    assert named(hosts, ["i-1"]) == ()

    assert time.process_time() - began < 0.5
