"""A user's hold: requested, shortened, replaced, withdrawn."""

from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.users import own_agent
from gpu_fleet_image.core.holds import Output, wish
from gpu_fleet_image.core.marks import give_back_of, hold_in, hold_of
from gpu_fleet_image.core.model import (
    KEEP_AT_MOST,
    TAG_GIVE_BACK,
    TAG_KEEP_BY,
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_MANAGED,
    TAG_OWNER,
    Instance,
)
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.times import format_time, parse_time
from tests.image.fake_aws import fake_aws
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.moto_fleet import REGION, MotoFleet
from tests.image.samples import NOON


@pytest.fixture(scope="module")
def moto_fleet():
    with fake_aws():
        yield MotoFleet()


@pytest.fixture
def fleet(moto_fleet, monkeypatch):
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", "/nowhere.toml")
    return moto_fleet


def in_8_hours():
    return format_time(datetime.now(UTC) + timedelta(hours=8))


def run(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_an_instance_is_kept_for_the_time_asked_for(fleet):
    (instance,) = fleet.start()

    result = run("keep", "8h", "--reason", "paper deadline", "--instance-id", instance)

    tags = fleet.tags(instance)
    assert result.exit_code == 0, result.output
    left = parse_time(tags[TAG_KEEP_UNTIL]) - datetime.now(UTC)
    assert timedelta(hours=7, minutes=58) < left <= timedelta(hours=8)
    assert tags[TAG_KEEP_REASON] == "paper deadline"
    assert "is kept until" in result.output


@pytest.mark.parametrize(
    ("tags", "duration", "says"),
    [
        ({}, "30d", "30d is longer than 14 days"),
        (
            {TAG_KEEP_UNTIL: "next week", TAG_OWNER: "moto"},
            "1h",
            "warning: gpu-fleet:keep-until = 'next week'; allowed: an ISO 8601 time",
        ),
    ],
)
def test_what_is_shortened_or_replaced_is_said(fleet, tags, duration, says):
    (instance,) = fleet.start(**tags)

    result = run("keep", duration, "--reason", "long run", "--instance-id", instance)

    assert says in result.output
    assert parse_time(fleet.tags(instance)[TAG_KEEP_UNTIL]) < datetime.now(UTC) + KEEP_AT_MOST


def test_release_takes_the_hold_back(fleet):
    (instance,) = fleet.start()
    run("keep", "1h", "--reason", "x", "--instance-id", instance)

    result = run("release", "--instance-id", instance)

    assert result.output == f"{instance} is kept no longer\n"
    assert hold_in(fleet.tags(instance), datetime.now(UTC)) is None
    assert run("release", "--instance-id", instance).output == f"{instance} was not kept\n"


@pytest.mark.parametrize("command", [("keep", "1h", "--reason", "y"), ("release",)])
def test_what_another_keeps_is_changed_by_who_says_whose_it_is(fleet, command):
    until = in_8_hours()
    kept = {TAG_KEEP_UNTIL: until, TAG_KEEP_REASON: "deadline", TAG_KEEP_BY: f"{until} bob"}
    (instance,) = fleet.start(**kept, **{TAG_OWNER: "team"})

    refused = run(*command, "--instance-id", instance)
    untouched = fleet.tags(instance)
    done = run(*command, "--instance-id", instance, "--holder", "bob")

    assert refused.exit_code == 1
    assert f"{instance} is kept until {until} by bob (deadline)" in refused.output
    assert {key: untouched[key] for key in kept} == kept
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("holder", ["moto", "moto@lab.example.com"])
def test_who_keeps_an_instance_or_owns_it_releases_it(fleet, holder):
    until = in_8_hours()
    (held,) = fleet.start(**{TAG_KEEP_UNTIL: until, TAG_KEEP_BY: f"{until} {holder}", TAG_OWNER: "team"})
    (owned,) = fleet.start(**{TAG_KEEP_UNTIL: until, TAG_KEEP_BY: f"{until} bob", TAG_OWNER: holder})

    said = [run("release", "--instance-id", instance).output for instance in (held, owned)]

    assert said == [f"{instance} is kept no longer\n" for instance in (held, owned)]


def test_a_holder_is_that_of_the_hold_in_force_and_of_none_before(fleet):
    until = in_8_hours()
    stale = f"{format_time(NOON)} moto"
    (instance,) = fleet.start(**{TAG_KEEP_UNTIL: until, TAG_KEEP_BY: stale, TAG_OWNER: "bob"})

    assert f"{instance} is kept until {until} by bob" in run("release", "--instance-id", instance).output


def test_what_was_given_back_and_kept_after_all_stays_kept_from_the_give_back_when_released(fleet):
    (instance,) = fleet.start(**{TAG_GIVE_BACK: f"{format_time(datetime.now(UTC))} ada", TAG_OWNER: "ada"})
    run("keep", "1h", "--reason", "x", "--instance-id", instance)

    run("release", "--instance-id", instance)

    yesterday = datetime.now(UTC) - timedelta(days=1)
    seen = Instance(instance, "g5.xlarge", "running", yesterday, fleet.tags(instance))
    assert give_back_of(seen) is None


@pytest.mark.parametrize("command", [("keep", "1h", "--reason", "x"), ("release",)])
def test_an_instance_that_is_not_the_reaper_s_is_refused(fleet, command):
    (instance,) = fleet.start(**{TAG_MANAGED: "false"})

    result = run(*command, "--instance-id", instance)

    assert result.exit_code == 1
    assert f"{instance} does not carry gpu-fleet:managed=true" in result.output


def test_bad_input_is_one_message(fleet):
    durations, regions = ("8", "h", "0h", "-1h", "8 hours", ""), ("us east 1", "../x")
    keep, release = ("keep", "--reason", "x", "--instance-id", "i-1"), ("release", "--instance-id", "i-1")
    says = {
        ("keep", "1h", "--reason", "x"): "error: --instance is missing, and this is no instance of a fleet"
    }
    says |= {
        (*keep, "--", each): f"error: duration {each!r}; allowed: a number and m, h or d, say 90m, 8h or 2d"
        for each in durations
    }
    region = "allowed: a region of AWS, say us-east-1\n"
    says |= {(*release, "--region", each): f"error: region = {each!r}; {region}" for each in regions}

    said = {words: run(*words) for words in says}

    assert {words: each.exit_code for words, each in said.items()} == dict.fromkeys(says, 1)
    assert {
        words: said[words].output for words in says if not said[words].output.startswith(says[words])
    } == {}


def test_without_any_region_the_flag_is_named(fleet, monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)

    result = run("release", "--instance-id", "i-1")

    assert result.output == (
        "error: --stack and --region are missing, and neither instance.toml nor AWS_REGION says the region\n"
    )


@pytest.fixture
def own_file(tmp_path, monkeypatch):
    """An instance's own file."""
    (tmp_path / "instance.toml").write_text(INSTANCE_TOML)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))


def test_on_an_instance_its_region_is_known(fleet, own_file, monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    (instance,) = fleet.start()

    assert run("release", "--instance-id", instance).exit_code == 0


@pytest.mark.parametrize(
    "words",
    [("release", "--instance", ""), ("keep", "1h", "--reason", "x", "--instance", ""), ("explain", "")],
)
def test_on_an_instance_an_empty_name_of_another_does_not_mean_this_one(own_file, monkeypatch, words):
    monkeypatch.setattr(own_agent, "answered", lambda _request: Output(("the agent did it",)))

    result = run(*words)

    assert result.exit_code == 1
    assert result.output == "error: INSTANCE '': is empty; allowed: the id of an instance\n"


@pytest.mark.parametrize("reason", ["", "  ", "x" * 257, "\x1b[2J", "\ud800"])
def test_a_reason_that_says_nothing_or_fits_no_tag_is_refused(reason):
    with pytest.raises(ConfigurationError, match=r"--reason .*; allowed: (1 to 128|characters that can)"):
        wish(timedelta(hours=1), reason, NOON)


@given(st.timedeltas(min_value=timedelta(minutes=1), max_value=timedelta(days=10_000)))
def test_every_hold_is_one_that_the_sweep_obeys_without_a_doubt(duration):
    made = wish(duration, "x", NOON)

    hold = hold_of(Instance("i-1", "", "running", NOON, made.tags("ada")), NOON)

    assert not hold.problem
    assert hold.until <= NOON + KEEP_AT_MOST
