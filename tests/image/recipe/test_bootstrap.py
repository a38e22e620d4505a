"""The recipe at a first boot: what runs, what is tried again, what is reported."""

import json
import os
from pathlib import Path

import pytest

from gpu_fleet_image.recipe import bootstrap, payload
from gpu_fleet_image.recipe.bootstrap import RecipePlace, marked
from gpu_fleet_stacks.images import wheels_command
from tests.image.recipe.recipe import PATH, do_nothing, lay_down, provision
from tests.ran import executable

ORDER = (payload.PROJECT / "image" / "gpu_fleet_image" / "recipe" / "steps" / "ORDER").read_text()


@pytest.fixture
def place(tmp_path):
    """An instance, were it not for its root."""
    (tmp_path / "payload").mkdir()
    (tmp_path / "payload" / "payload.sha256").write_text("cafe\n")

    class Instance(RecipePlace):
        is_folder = False

    return Instance(tmp_path / "payload", tmp_path / "root", "aws")


STEPS = ("15-agent", "55-mounts", "70-trainer")
BOOT = {"TARGET": "aws", "BOOTSTRAP": "1"}


def booted(place, *answers):
    """A boot whose second step answers so, one try after another: its report, steps that ran, waits."""
    said, steps, waits = iter(answers), [], []

    def run(_, step):
        steps.append(step)
        return next(said) if step == "55-mounts" else "done"

    return bootstrap.bootstrap(place, STEPS, run, waits.append), steps, waits


def report_of(place):
    return json.loads(place.report_file.read_text())


@pytest.mark.parametrize("target", ["aws", "alicloud"])
def test_the_agent_comes_first_and_the_queue_last_and_no_first_boot_seals_or_pins_a_driver(target):
    steps = marked(ORDER, target, "bootstrap")

    assert steps[0] == bootstrap.FIRST
    assert steps[-3:] == ("70-trainer", "72-tools", "75-queue")
    assert not {step for step in steps if step.endswith(("seal", "driver", "fabric", "manifest", "base"))}
    assert marked(ORDER, target, "controller") == ("15-agent", "55-mounts", "60-hardening", "75-queue")
    assert marked(ORDER, target, "folder") == (bootstrap.FIRST,)


@pytest.mark.parametrize(
    ("queue", "mark"),
    [(None, "bootstrap"), ({"role": "node"}, "bootstrap"), ({"role": "controller"}, "controller")],
)
def test_a_queues_controller_runs_steps_of_its_own(tmp_path, monkeypatch, queue, mark):
    place = RecipePlace(tmp_path, tmp_path, "aws")
    monkeypatch.setattr(RecipePlace, "is_folder", False)
    if queue is not None:
        (tmp_path / "etc/gpu-fleet").mkdir(parents=True)
        (tmp_path / "etc/gpu-fleet/queue.json").write_text(json.dumps(queue))

    assert bootstrap.mark_of(place) == mark


def test_a_step_that_fails_keeps_no_other_from_running_and_is_tried_again(place):
    report, _, waited = booted(place, "no way out", "no way out", "done")

    assert report.state == "done"
    assert set(report.steps.values()) == {"done"}
    assert waited == [30, 120]


def test_a_step_that_never_succeeds_is_reported_and_given_up(place, capsys):
    report, _, waited = booted(place, *["no way out"] * 9)

    assert report_of(place)["state"] == report.state == "incomplete"
    assert report_of(place)["steps"] == {"15-agent": "done", "55-mounts": "no way out", "70-trainer": "done"}
    assert waited == list(bootstrap.WAITS_S)
    assert "event=bootstrap-step-failed step=55-mounts reason='no way out'" in capsys.readouterr().out


def test_the_next_boot_tries_what_was_left_and_empties_no_trainers_environment(place):
    booted(place, *["no way out"] * 9)

    _, again, _ = booted(place, "done")

    assert again == ["15-agent", "55-mounts"]
    assert set(report_of(place)["steps"]) == set(STEPS)
    assert report_of(place)["state"] == "done"


def test_another_payload_does_every_step_anew(place):
    booted(place, "done")
    (place.payload / "payload.sha256").write_text("beef\n")

    assert booted(place, "done")[1] == list(STEPS)


def test_a_report_that_cannot_be_written_terminates_nothing(place, capsys):
    place.root.write_text("a file where a folder should be")

    assert booted(place, "done")[0].state == "done"
    assert "event=bootstrap-report-failed" in capsys.readouterr().out


@pytest.fixture
def recipe(tmp_path):
    """The payload, its steps done by nothing."""
    folder = lay_down(tmp_path / "payload")
    do_nothing(folder)
    return folder


def test_another_ubuntu_gets_its_agent_and_hears_which_bases_the_rest_is_for(recipe, root_user):
    for base in (recipe / "versions").glob("*.tsv"):
        base.rename(base.with_name("ubuntu-26.10.tsv"))

    agent, scratch = (provision(recipe, step, **BOOT) for step in ("15-agent", "40-scratch"))

    assert agent.returncode == 0
    assert scratch.returncode == 1
    assert "the bases are ubuntu-26.10" in scratch.stderr


@pytest.fixture
def root_user():
    if not Path("/etc/debian_version").exists() or os.geteuid() != 0:
        pytest.skip("the recipe runs on Debian and Ubuntu as root")


def test_a_missing_package_says_soon_that_no_archive_answers(recipe, root_user, tmp_path):
    """What a step asks for where the network has no way out; apt is a stand-in that reaches nothing."""
    programs = tmp_path / "bin"
    executable(programs / "apt-get", "#!/bin/sh\nexit 100\n")
    executable(programs / "dpkg-query", '#!/bin/sh\n[ "$4" = mdadm ] && exit 1\necho installed\n')
    (recipe / "versions" / "any.tsv").touch()
    (recipe / "steps" / "40-scratch.sh").write_text('set -e\n. "$PAYLOAD/lib.sh"\ninstall xfsprogs mdadm\n')

    said = provision(recipe, "40-scratch", **BOOT, PATH=f"{programs}:{PATH}")

    assert said.returncode == 1
    assert "error: no access to the package archives; missing on this base: mdadm\n" in said.stderr


def test_the_recipe_installs_the_trainer_from_the_list_that_the_command_uploads():
    step = (payload.PROJECT / "image" / "gpu_fleet_image" / "recipe" / "steps" / "70-trainer.sh").read_text()

    assert 'gpu_fleet_image.instance.trainer_wheels "$PAYLOAD/wheels" "$BASE"' in step
    assert (wheels_command.LISTS / f"{wheels_command.BASE}.txt").is_file()
