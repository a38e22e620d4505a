"""Members of a directory's groups as accounts: numbers for good, nobody's files another's."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.directory import directory as directories
from gpu_fleet_image.controllers.directory.directory import (
    NUMBERS,
    Directory,
    MemberAccount,
    MemberProfile,
    TeamGroup,
    merge,
    parse_registry,
)
from gpu_fleet_image.core import roster
from gpu_fleet_image.core.errors import ConfigurationError

VISION = TeamGroup("vision", 31_000, "group-1", admin=False)
ROOTS = TeamGroup("operations", 31_001, "group-2", admin=True)
ALICE = {"name": "alice", "uid": 5001, "keys": [], "team": "", "team_gid": 0, "admin": False}
DIRECTORY = Directory((ALICE,), (ROOTS, VISION), {"ada": ("ssh-ed25519 AAAA ada",)}, frozenset({"daemon"}))


def merged(members, profiles=None, registry=None, directory=DIRECTORY):
    names = profiles or {
        member: MemberProfile(member.removeprefix("id-")) for ids in members.values() for member in ids
    }
    return merge(directory, {"vision": (), "operations": (), **members}, names, registry or {})


def users(outcome):
    return {entry["name"]: entry for entry in outcome.users}


def test_a_member_gets_an_account_with_a_number_a_team_and_the_keys_of_the_stack():
    ada = users(merged({"vision": ["id-ada"]}))["ada"]

    assert ada["uid"] in NUMBERS
    assert (ada["team"], ada["team_gid"], ada["admin"]) == ("vision", 31_000, False)
    assert ada["keys"] == ["ssh-ed25519 AAAA ada"]


def test_a_member_of_two_groups_is_in_the_first_team_and_an_admin_where_either_says_so():
    both = users(merged({"vision": ["id-ada"], "operations": ["id-ada"]}))["ada"]

    assert (both["team"], both["admin"]) == ("operations", True)


def test_who_left_the_group_has_no_account_and_keeps_their_number_for_when_they_come_back():
    before = merged({"vision": ["id-ada", "id-bob"]})
    left = merged({"vision": ["id-bob"]}, registry=before.registry)
    back = merged({"vision": ["id-ada", "id-bob"]}, registry=left.registry)

    assert "ada" not in users(left)
    assert users(back)["ada"]["uid"] == users(before)["ada"]["uid"]


def test_who_is_shut_out_by_the_directory_has_no_account_though_the_group_lists_them():
    before = merged({"vision": ["id-ada"]})

    shut_out = {"id-ada": MemberProfile("ada", enabled=False)}
    disabled = merged({"vision": ["id-ada"]}, shut_out, before.registry)
    not_asked = merge(DIRECTORY, {"vision": ["id-ada"], "operations": []}, {}, disabled.registry)

    assert "ada" not in users(disabled)
    assert "ada" not in users(not_asked)


def test_who_was_renamed_keeps_name_and_number_and_is_said_to():
    before = merged({"vision": ["id-ada"]})

    renamed = merged({"vision": ["id-ada"]}, {"id-ada": MemberProfile("ada-lovelace")}, before.registry)

    assert users(renamed)["ada"]["uid"] == users(before)["ada"]["uid"]
    assert "ada-lovelace" not in users(renamed)
    assert "is 'ada' here, the owner of their files" in renamed.left_out["ada-lovelace"]


def test_a_name_that_was_another_members_is_given_to_no_newcomer():
    before = merged({"vision": ["id-ada"]})

    newcomer = merged({"vision": ["id-new"]}, {"id-new": MemberProfile("ada")}, before.registry)

    assert "ada" not in users(newcomer)
    assert "was the name of another member" in newcomer.left_out["ada"]


@pytest.mark.parametrize(
    "name",
    ["root; rm", "Ada", "ada@example.com", "", "-ada", "daemon", "gpu-fleet-admins", "systemd-x", "a" * 32],
)
def test_who_has_no_login_name_is_left_out_and_all_others_are_served(name):
    profiles = {"id-1": MemberProfile(name), "id-bob": MemberProfile("bob")}
    outcome = merged({"vision": [*profiles]}, profiles)

    assert users(outcome).keys() == {"alice", "bob"}
    assert outcome.left_out.keys() == {name}


def test_a_user_whom_the_stack_names_is_not_made_twice():
    outcome = merged({"vision": ["id-alice"]})

    assert outcome.users == [ALICE]
    assert outcome.registry == {}


def test_of_two_with_one_number_the_member_stays_and_who_came_later_is_left_out():
    registry = {"id-ada": MemberAccount("ada", 20_500, "ada")}
    later = replace(DIRECTORY, named=({**ALICE, "uid": 20_500},))

    outcome = merged({"vision": ["id-ada"]}, registry=registry, directory=later)

    assert users(outcome).keys() == {"ada"}
    assert "uid 20500 belongs to 'ada'" in outcome.left_out["alice"]


def test_no_number_is_given_twice_though_two_ids_lead_to_the_same(monkeypatch):
    monkeypatch.setattr(directories.hashlib, "sha256", lambda _: Mock(digest=lambda: b"8" * 8))

    outcome = merged({"vision": ["id-ada", "id-bob", "id-eve"]})

    numbers = [entry["uid"] for entry in outcome.users]
    assert len(set(numbers)) == len(numbers) == 4


people = st.sampled_from(["ada", "bob", "eve", "kai", "Mallory"])
rounds = st.lists(st.tuples(st.sets(people), st.sets(people), st.dictionaries(people, people)), max_size=6)


@given(rounds)
def test_over_any_history_a_number_is_one_users_and_what_is_written_is_a_roster(history):
    registry, owners = {}, {}
    for vision, operations, renames in history:
        members = {"vision": sorted(vision), "operations": sorted(operations)}
        profiles = {member: MemberProfile(renames.get(member, member)) for member in vision | operations}
        outcome = merged(members, profiles, registry)
        registry = outcome.registry
        read = roster.parse({"schema_version": 1, "users": outcome.users})
        assert {person.name for person in read} >= {"alice"}
        for member, account in registry.items():
            assert owners.setdefault(account.uid, (member, account.name)) == (member, account.name)
        listed = {person.uid for person in read} - {5001}
        assert listed <= {registry[member].uid for member in vision | operations if member in registry}


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"accounts": ["ada"]},
        {"accounts": {"1": {"name": "ada"}}},
        {"accounts": {"1": {"name": "ada", "uid": 0, "now": "ada"}}},
        {"accounts": {name: {"name": name, "uid": 20_000, "now": name} for name in ("ada", "bob")}},
    ],
)
def test_no_number_is_given_out_over_a_damaged_book(damaged):
    with pytest.raises(ConfigurationError, match="damaged"):
        parse_registry(damaged)


@pytest.mark.parametrize("lacking", ["named", "teams", "keys", "taken"])
def test_settings_without_a_part_are_refused(lacking):
    written = {"named": [], "teams": [], "keys": {}, "taken": ["root"]}
    del written[lacking]

    with pytest.raises(ConfigurationError, match=f"{lacking} is missing"):
        directories.parse(written)
