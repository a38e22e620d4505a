"""A wrong policy gives one message with every wrong key, and no sweep."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.document import text_of
from gpu_fleet_image.core.reaper_errors import PolicyError
from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.settings import stack_files
from tests.image.moto_fleet import budget_json, policy_json, pool_policy
from tests.stacks.shipped import SHIPPED


def refusal(**changes) -> str:
    """Return the error of a policy; empty if it is accepted."""
    try:
        policies.parse(json.dumps(policy_json(**changes)))
    except PolicyError as error:
        return str(error)
    return ""


def test_a_valid_policy_is_read_as_it_is_written():
    parsed = policies.parse(json.dumps(policy_json(time_zone="Europe/Berlin")))

    assert parsed.time_zone.key == "Europe/Berlin"
    assert str(parsed.pools["dev"].hourly_price["g5.xlarge"]) == "1.006"


WRONG = [
    ({"time_zone": "Europe/Berlon"}, "time_zone = 'Europe/Berlon'; allowed: an IANA time zone"),
    ({"time_zone": "Europe/Berlon"}, "(nearest: Europe/Berlin)"),
    ({"max_percent": 101}, "max_percent = 101; allowed: a whole number from 0 to 100"),
    ({"max_actions": -1}, "max_actions = -1; allowed: a whole number from 0 to 100000"),
    ({"max_actions": True}, "max_actions = True; allowed: a whole number"),
    ({"schema_version": 2}, "schema_version = 2; allowed: 1"),
    ({"cloud": "gcp"}, "cloud = 'gcp'; allowed: aws, alicloud"),
    ({"dry_rum": True}, "dry_rum is unknown (nearest: dry_run)"),
    ({"pools": []}, "pools = []; allowed: an object"),
]
SPOT = {"action": "stop", "market": "spot", "instance_store_scratch": False}
WRONG_OF_A_POOL = [
    ({"idle_after_hours": 0}, "pools.dev.idle_after_hours = 0; allowed: a number from 0.05 to 336"),
    ({"action": "kill"}, "pools.dev.action = 'kill'; allowed: stop, terminate"),
    ({"action": "stop"}, "allowed: terminate, because instance_store_scratch is true"),
    (SPOT, "allowed: terminate, because market is spot"),
    ({"quiet_hours": [{"start": "7pm", "end": "07:00"}]}, "quiet_hours[0].start = '7pm'; allowed: HH:MM"),
    ({"hourly_price": {"g5.xlarge": 1.006}}, "hourly_price.g5.xlarge = 1.006; allowed: a price as a text"),
    ({"max_lifetime_hours": 12}, "max_lifetime_hours = 12; allowed: a whole number from 24"),
    ({"scale_in_alarm": ""}, "scale_in_alarm = ''; allowed: a text that is not empty"),
    ({"require_acknowledgement": "yes"}, "require_acknowledgement = 'yes'; allowed: true or false"),
]
ASSUMED = [
    ({"g5.xlarge": "9"}, "budget.assumed.g5.xlarge = '9'; allowed: types without a price: p6.xlarge"),
    ({"p6.xlarge": "0"}, "budget.assumed.p6.xlarge = '0'; allowed: a price above 0"),
    ({"p6.xlarge": None}, "budget.assumed.p6.xlarge = None; allowed: a price above 0"),
    ({"p6.xlarge": 9}, "budget.assumed.p6.xlarge = 9; allowed: a price above 0 as a text"),
    ({"p7.xlarge": "9"}, "budget.assumed.p7.xlarge = '9'; allowed: types without a price: p6.xlarge"),
]


def assuming(prices):
    """Return a budget with assumed prices; only p6.xlarge needs one."""
    pool = budget_json()["pools"]["dev"]
    pools = {"dev": pool | {"on_demand": pool["on_demand"] | {"p6.xlarge": None}}}
    return budget_json(pools=pools, assumed=prices)


def test_a_wrong_key_is_named_with_its_path_its_value_and_what_is_allowed():
    said = [(refusal(**changes), words) for changes, words in WRONG]
    said += [(refusal(pools={"dev": pool_policy(**changes)}), words) for changes, words in WRONG_OF_A_POOL]
    said += [(refusal(budget=assuming(prices)), words) for prices, words in ASSUMED]

    assert [row for row in said if row[1] not in row[0]] == []


@pytest.mark.parametrize("name", SHIPPED)
def test_a_published_policy_is_written_again_to_the_byte(name):
    published = sweep_policy.policy_text(stack_files.settings_of(name))

    assert text_of(policies.parse(published)) == published


def test_every_problem_of_a_file_is_reported_at_once():
    message = refusal(max_percent=101, time_zone="Mars", pools={"dev": pool_policy(coverage_percent=0)})

    assert len(message.splitlines()) == 3


def test_what_is_no_json_or_no_utf_8_is_refused(tmp_path):
    (tmp_path / "policy.json").write_bytes(b"\xff\xfe{")

    with pytest.raises(PolicyError, match="not JSON"):
        policies.parse("{")
    with pytest.raises(PolicyError, match=r"policy\.json: not UTF-8, at byte 0"):
        policies.load(tmp_path / "policy.json")


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists))
def test_no_json_at_all_makes_a_policy_or_a_traceback(content):
    with pytest.raises(PolicyError):
        policies.parse(json.dumps(content))


@given(key=st.sampled_from(sorted(policy_json())), value=st.none() | st.integers() | st.text() | st.just({}))
def test_any_value_of_any_key_is_taken_or_refused_in_words(key, value):
    message = refusal(**{key: value})

    assert not message or key in message


def test_a_user_sees_one_message_and_no_traceback(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(policy_json(max_percent=101)))

    wrong, gone, untimely = (
        CliRunner().invoke(main, ["sweep", *words])
        for words in (
            ("--policy", str(path)),
            ("--policy", str(tmp_path / "none.json")),
            ("--now", "2026-11-21T18:00"),
        )
    )

    assert [shown.exit_code for shown in (wrong, gone, untimely)] == [1, 1, 2]
    assert wrong.output.startswith("error: ")
    assert "max_percent = 101" in wrong.output
    assert "Traceback" not in wrong.output
    assert "No such file" in gone.output
    assert "ISO 8601 with a zone" in untimely.output
