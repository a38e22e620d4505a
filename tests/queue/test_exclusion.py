"""Away from which nodes a job is kept."""

from dataclasses import replace

import pytest

from image.queue.exclusion import exclusions, failed_on
from image.queue.slurm import Node
from tests.queue.test_books import RUNNING

NODES = [Node(f"i-{number}", "train", frozenset({"IDLE"})) for number in (1, 2, 3)]
WAITS = replace(RUNNING, state="PENDING", nodes=1, comment="gpu-fleet:failed-on=i-1,-,i-2")


def kept(job, most=8, nodes=NODES):
    return exclusions([job], nodes, {"train": most})


def test_a_job_that_waits_is_kept_away_from_where_it_failed_the_newest_first():
    assert kept(WAITS) == {"7": ("i-2", "i-1")}


def test_a_job_that_runs_is_left_where_it_is():
    assert kept(replace(WAITS, state="RUNNING")) == {}


@pytest.mark.parametrize(("nodes", "bad"), [(1, ("i-2",)), (2, ())])
def test_never_is_a_pool_left_too_small_for_the_job(nodes, bad):
    assert kept(replace(WAITS, nodes=nodes), most=2) == {"7": bad}


def test_an_instance_that_is_gone_or_of_another_pool_is_none():
    assert kept(WAITS, nodes=[NODES[2], replace(NODES[0], pool="dev")]) == {"7": ()}


@pytest.mark.parametrize("comment", ["", "gpu-fleet", "mine:failed-on=i-1", "x gpu-fleet:failed-on=i-1"])
def test_any_other_comment_names_nothing(comment):
    assert failed_on(comment) == ()
    assert kept(replace(WAITS, comment=comment)) == {}
