"""How long a user's session is kept, and what is said while the cloud gives none."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.runs import ACCOUNT
from gpu_fleet_image.instance.credentials.alicloud import AlicloudUserRole, session_policy
from gpu_fleet_image.instance.credentials.errors import NoSessionError, NotServedError
from gpu_fleet_image.instance.credentials.sessions import SessionKeys, Sessions, account_in, session_name
from tests.image import alicloud_server
from tests.image.metadata_server import metadata_server

ROLE = "acs:ram::1234567890123456:role/dev-user"
START = datetime(2026, 11, 26, 4, tzinfo=UTC)


class Role:
    """A role whose sessions last an hour, with its own time; fails while ``error`` is set."""

    def __init__(self):
        self.now, self.asked, self.error = START, 0, None
        self.keys_of = Sessions(self, lambda: self.now).keys_of

    def assume(self, account):
        self.asked += 1
        if self.error:
            raise self.error
        return SessionKeys(f"{account}-{self.asked}", "secret", "token", self.now + timedelta(hours=1))


@pytest.fixture
def role():
    return Role()


THROTTLED = CloudError("AssumeRole: Throttling")


@pytest.mark.parametrize(
    ("minutes", "error", "key_id"),
    [(0, None, "ada-1"), (39, None, "ada-1"), (40, None, "ada-2"), (59, THROTTLED, "ada-1")],
)
def test_a_session_is_kept_until_botocore_would_ask_for_a_newer_one_or_the_cloud_gives_it(
    role, minutes, error, key_id
):
    role.keys_of("ada")

    role.now, role.error = START + timedelta(minutes=minutes), error

    assert role.keys_of("ada").key_id == key_id


def test_keys_that_have_ended_are_given_to_nobody_whatever_the_cloud_answers(role):
    role.keys_of("ada")
    role.now = START + timedelta(minutes=60)

    for role.error, why in (
        (THROTTLED, "AssumeRole: Throttling"),
        (KeyError("Credentials"), r"the cloud's answer cannot be read: KeyError\('Credentials'\)"),
    ):
        with pytest.raises(NoSessionError, match=why):
            role.keys_of("ada")
        role.now += timedelta(seconds=5)  # it is asked again soon


def test_eight_ranks_that_hear_no_are_one_question_and_the_next_one_follows_soon(role):
    role.error = CloudError("AssumeRole: AccessDenied")
    for _ in range(8):
        with pytest.raises(NoSessionError, match="AccessDenied"):
            role.keys_of("ada")
    assert role.asked == 1

    role.now, role.error = START + timedelta(seconds=5), None

    assert role.keys_of("ada").key_id == "ada-2"


@given(st.from_regex(ACCOUNT, fullmatch=True))
def test_the_account_of_a_session_is_read_off_its_name_which_no_other_account_has(account):
    name = session_name(account, "i-0123456789abcdef0")

    assert account_in(name) == account
    assert len(name) <= 64  # the longest of both clouds


@pytest.mark.parametrize("account", ["", "a b/c", "Ada", "ada.b", "ada@i-1", "a*", "a" * 32, "ada\n"])
def test_an_account_whose_name_the_rules_refuse_has_no_session(account):
    with pytest.raises(NotServedError, match=r"is not served; allowed: \[a-z\]"):
        session_name(account, "i-0abc")


def test_a_sessions_own_policy_is_as_short_as_alibaba_cloud_asks():
    longest = session_policy("a" * 31, "b" * 63)

    assert len(longest) <= 2048  # the reference of AssumeRole


def test_alibaba_cloud_gives_a_session_that_is_named_after_account_and_instance(monkeypatch):
    asked, given = [], {"AccessKeyId": "STS.ada", "AccessKeySecret": "s", "SecurityToken": "token"}
    given["Expiration"] = "2026-11-26T05:00:00Z"
    own = {"AccessKeyId": "made-up", "AccessKeySecret": alicloud_server.SECRET}
    sts = SimpleNamespace(assume_role=lambda ask: asked.append(ask) or {"Credentials": given})
    with alicloud_server.serving(sts) as cloud, metadata_server("alicloud") as metadata:
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_ENDPOINT", cloud.url)
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", metadata.base)
        metadata.says("ram/security-credentials/", "fleet")
        metadata.says(
            "ram/security-credentials/fleet", json.dumps(given | own | {"Expiration": "2999-01-01T00:00:00Z"})
        )

        keys = AlicloudUserRole(ROLE, "cn-wulanchabu", "records", Metadata("alicloud")).assume("ada")

    assert keys == SessionKeys("STS.ada", "s", "token", START + timedelta(hours=1))
    (ask,) = asked
    assert (ask["RoleArn"], ask["RoleSessionName"], ask["DurationSeconds"]) == (ROLE, "ada@i-1", "3600")
    assert ask["Policy"] == session_policy("ada", "records")
