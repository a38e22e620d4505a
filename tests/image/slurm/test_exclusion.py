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
WAITS = replace(RUNNING, state="PENDING", nodes=1, comment="gpu-fleet:failed-on=i-1,-,i-2")


def kept(job, most=8, nodes=NODES, excluded=""):
    return exclusions([ListedJob(job, JobRequest(), excluded=excluded)], nodes, {"train": most})


def test_a_job_that_waits_is_kept_away_from_where_it_failed_the_newest_first():
    assert kept(WAITS) == {"7": ("i-2", "i-1")}


def test_a_job_that_runs_is_left_where_it_is():
    assert kept(replace(WAITS, state="RUNNING")) == {}


@pytest.mark.parametrize(("nodes", "bad"), [(1, {"7": ("i-2",)}), (2, {})])
def test_never_is_a_pool_left_too_small_for_the_job(nodes, bad):
    assert kept(replace(WAITS, nodes=nodes), most=2) == bad


def test_what_its_user_excluded_stays_so_and_comes_first():
    assert kept(WAITS, excluded="i-3") == {"7": ("i-3", "i-2", "i-1")}
    assert kept(WAITS, most=2, excluded="i-[3-4]") == {"7": ("i-3",)}


def test_where_a_job_failed_is_no_list_of_its_users():
    """The controller wrote it there at an earlier poll."""
    assert kept(replace(WAITS, nodes=7), excluded="i-[1-2]") == {"7": ("i-2",)}


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("i-1,i-3", "i-1 i-3"),
        ("i-[1-2,10]", "i-1 i-2 i-10"),
        ("i-0a[01-02]", "i-0a01"),
        ("i-0a[1-2]", ""),
        ("", ""),
        ("i-[1-", ""),
        ("i-[-,]", ""),
        ("[1-2]", ""),
    ],
)
def test_nodes_are_those_that_a_list_of_slurms_names(hosts, names):
    assert named(hosts, ["i-1", "i-2", "i-3", "i-10", "i-0a01"]) == tuple(names.split())


def test_an_instance_that_is_gone_or_of_another_pool_is_none():
    assert kept(WAITS, nodes=[NODES[2], replace(NODES[0], pool="dev")]) == {}


@pytest.mark.parametrize("comment", ["", "gpu-fleet", "mine:failed-on=i-1", "x gpu-fleet:failed-on=i-1"])
def test_any_other_comment_names_nothing(comment):
    assert failed_on(comment) == ()
    assert kept(replace(WAITS, comment=comment)) == {}


@pytest.mark.parametrize("hosts", ["i-[1-2-3]", "i-[-1]", "i-[1,,2]", f"i-[{'1' * 5000}]"])
def test_a_list_of_hosts_that_is_none_names_no_node_and_ends_no_poll(hosts):
    assert named(hosts, ["i-1", "i-2"]) == ()


@pytest.mark.parametrize("text", ["a[", "a[1,", "[a", "a[1]["])
def test_a_list_that_a_user_made_long_is_read_in_time_that_grows_with_its_length(text):
    """A bracket that never closes was looked for to the end again and again: seconds in each poll."""
    hosts = text * 20_000
    began = time.process_time()

    assert named(hosts, ["i-1"]) == ()

    assert time.process_time() - began < 0.5
