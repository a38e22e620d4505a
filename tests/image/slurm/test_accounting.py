"""Accounts of the queue: users and their teams, and the dump that outlives the controller's disk."""

import gzip
import json
import os
import pwd
from dataclasses import replace
from subprocess import TimeoutExpired
from unittest.mock import Mock

import pytest

from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.keys import GROWTH
from gpu_fleet_image.core.queue_errors import DatabaseError, RosterUnreadError, SlurmError
from gpu_fleet_image.core.store import StoredObject
from gpu_fleet_image.slurm import accounting, controller, database, folders, slurm
from gpu_fleet_image.slurm.slurm import Association
from tests.image.slurm.test_answers import TWO

AS_ROOT = os.geteuid() == 0
ROOT_ALONE = pytest.mark.skipif(not AS_ROOT, reason="only root can give files to another account")
KNOWN = [Association("root", ""), Association("root", "root")]
NLP, VISION = Association("nlp", ""), Association("vision", "")
ADA, REFUSED = Association("nlp", "ada"), Association("nlp", "ada", takes_jobs=False)
MOVED = Association("vision", "ada")
LIMITED, FROZEN = replace(NLP, share=2, max_gpus=16), replace(NLP, share=2, max_gpus=16, frozen=True)
SHARED = replace(NLP, share=2)
GUESTS = [Association("guests", "", 1, 0, frozen=True), Association("guests", "eve")]
LIMIT, SHARE = ({"nlp": {"share": 2, "max_gpus": most}} for most in (16, None))
FREEZE = {"nlp": {"share": 2, "max_gpus": 16, "frozen": "its budget is spent"}}
ANEW = ["add user ada account=nlp fairshare=1", "modify user where name=ada set defaultaccount=nlp"]
BOBS = ["add user bob account=no-team fairshare=1", "modify user where name=bob set defaultaccount=no-team"]
MODIFY, USER = "modify account where name=nlp set fairshare=", "modify user where name=ada account="
AT_NLP, AT_VISION = {"ada": "nlp"}, {"ada": "vision"}
LEFT = [VISION, REFUSED, MOVED]  # a team that all have left, where jobs of theirs wait
BACK = [NLP, VISION, ADA, replace(MOVED, takes_jobs=False)]
# What Slurm knows, user -> team, what the stack file says of teams, what Slurm is told.
TOLD = [
    # a team is an account, and who has none shares one; what Slurm knows is not said again
    ([], AT_NLP, {}, "add account nlp fairshare=1", *ANEW),
    ([NLP, ADA], AT_NLP | {"bob": ""}, {}, "add account no-team fairshare=1", *BOBS),
    ([NLP, ADA], AT_NLP, {}),
    # a team has the share and the limit of the stack file and no more, and is frozen and thaws with it
    ([ADA], AT_NLP, LIMIT, "add account nlp fairshare=2 grptres=gres/gpu=16"),
    ([NLP, ADA], AT_NLP, LIMIT, f"{MODIFY}2 grptres=gres/gpu=16"),
    ([LIMITED, ADA], AT_NLP, LIMIT),
    ([SHARED, ADA], AT_NLP, SHARE),
    ([LIMITED, ADA], AT_NLP, {}, f"{MODIFY}1 grptres=gres/gpu=-1"),
    ([LIMITED, ADA], AT_NLP, FREEZE, f"{MODIFY}2 grptres=gres/gpu=16,cpu=0"),
    ([FROZEN, ADA], AT_NLP, FREEZE),
    ([FROZEN, ADA], AT_NLP, LIMIT, f"{MODIFY}2 grptres=gres/gpu=16,cpu=-1"),
    ([LIMITED, *LEFT], AT_VISION, FREEZE, f"{MODIFY}2 grptres=gres/gpu=16,cpu=0"),
    ([FROZEN, *LEFT], AT_VISION, LIMIT, f"{MODIFY}2 grptres=gres/gpu=16,cpu=-1"),
    ([FROZEN, *LEFT], AT_VISION, {}, f"{MODIFY}1 grptres=gres/gpu=-1,cpu=-1"),
    # an account that an operator has made and closed stays so
    ([*GUESTS, VISION, MOVED], AT_VISION, {}),
    (GUESTS, {}, {}),
    # who changes teams works for the new one alone: `sbatch --account` goes round no limit and no freeze
    ([NLP, VISION, MOVED], AT_NLP, {}, *ANEW, f"{USER}vision set maxsubmitjobs=0"),
    (BACK, AT_NLP, {}),
    (BACK, AT_VISION, {}, f"{USER}vision set maxsubmitjobs=-1", f"{USER}nlp set maxsubmitjobs=0"),
    # who left and comes back hands in jobs again
    ([NLP, REFUSED], AT_NLP, {}, f"{USER}nlp set maxsubmitjobs=-1"),
    # a team cannot take Slurm's own account
    ([Association("no-team", ""), Association("no-team", "bob")], {"bob": "root"}, {}),
]


def told(known, teams, limits):
    users = [{"name": name, "team": team} for name, team in teams.items()]
    wanted, given = accounting.teams_of({"users": users}), accounting.limits_of({"teams": limits})
    return [" ".join(words) for words in accounting.shares(wanted, [*KNOWN, *known], given)]


def test_slurms_accounts_become_what_roster_and_stack_file_say():
    said = [(told(*row[:3]), row) for row in TOLD]

    assert [row for row in said if row[0] != [*row[1][3:]]] == []


@pytest.mark.parametrize(
    ("read", "roster"),
    [(accounting.limits_of, {"teams": teams}) for teams in (7, {"nlp": {"gpus": 3}}, {"nlp": 7})]
    + [
        (accounting.teams_of, {"users": users})
        for users in ([{"name": "ada"}], [{"name": "ada", "team": "x y"}], [7])
    ]
    + [(accounting.teams_of, {})],
)
def test_users_and_limits_that_make_no_sense_are_named_and_nothing_follows(read, roster):
    with pytest.raises(RosterUnreadError, match=r"accounts\.json" + (": teams" if "teams" in roster else "")):
        read(roster)


def test_jobs_of_the_qos_low_give_way_to_all_others():
    assert [" ".join(words) for words in accounting.qualities({"normal": []})] == [
        "add qos low priority=0 gracetime=120",
        "modify qos where name=normal set priority=1 preempt+=low",
    ]


def test_a_qos_that_an_operator_has_changed_stays_so():
    known = slurm.preempted(lambda _: "normal|low,scavenger\nlow|\nscavenger|\n")

    assert accounting.qualities(known) == []


HEAD = b"-- CHANGE MASTER TO MASTER_LOG_FILE='log.000002', MASTER_LOG_POS=343;\n"
NOW = 2_000_000_000.0


class Database:
    """Fake of MariaDB's programs that are called.

    Attributes:
        place: position in its log.
        refuses: commands that it refuses.
    """

    def __init__(self, data) -> None:
        self.commands, self.given, self.data = [], [], data
        self.tables, self.place, self.refuses = "", "log.000002\t343", ""

    def is_whole(self):
        (self.data / database.WHOLE).mkdir(exist_ok=True)

    def __call__(self, command, given=b""):
        self.commands.append(" ".join(command))
        asked = given.decode()
        if "--skip-column-names" in command:
            return {database.TABLES: self.tables}.get(asked, f"{self.place}\t\t\n").encode()
        if self.refuses and self.refuses in asked:
            raise DatabaseError("mariadb: disk full")
        self.given.append(asked)
        if database.WHOLE in asked:
            self.is_whole()
        return HEAD if command[0] == "mariadb-dump" else b""


@pytest.fixture
def maria(monkeypatch, tmp_path):
    made = Database(tmp_path / "data")
    made.data.mkdir()
    monkeypatch.setattr(database, "DATA", made.data)
    monkeypatch.setattr(database, "run", made)
    monkeypatch.setattr(database, "_changes", lambda file, at: f"{file.name}@{at}".encode())
    return made


@pytest.fixture
def whole(maria):
    """A database whose accounts are complete."""
    maria.is_whole()
    return maria


@pytest.fixture
def kept(tmp_path):
    (tmp_path / "kept/log").mkdir(parents=True)
    return database.KeptAccounts(tmp_path / "kept/dump.gz", tmp_path / "kept/log")


def dumped(kept, text=HEAD, logged=()):
    kept.dump.write_bytes(gzip.compress(text))
    for name in logged:
        (kept.log / name).touch()


def test_a_new_database_is_the_dump_and_its_changes_since_by_the_log_none_of_them_as_its_root(kept, maria):
    dumped(kept, logged=("log.000001", "log.000002", "log.000003", "log.index", "other"))

    assert database.begin(kept)

    assert maria.given[1:4] == [HEAD.decode(), "log.000002@343", "log.000003@0"]
    assert "runuser -u slurm -- mariadb slurm_acct_db" in maria.commands
    assert maria.commands.count("runuser -u mysql -- mariadb") == 2


def test_a_controller_that_was_lost_before_its_first_dump_left_all_of_it_in_the_log(kept, maria):
    (kept.log / "log.000001").touch()

    assert database.begin(kept)

    assert "log.000001@0" in maria.given


def test_a_log_that_cannot_be_carried_out_leaves_what_the_dump_has(kept, maria):
    dumped(kept, logged=("log.000002",))
    maria.refuses = "log.000002@343"

    assert database.begin(kept)

    assert maria.given[-2:] == [HEAD.decode(), "CREATE DATABASE gpu_fleet_whole;"]


def test_a_database_that_is_whole_is_left_as_it_is(kept, whole):
    dumped(kept)

    assert not database.begin(kept)
    assert whole.given == []


def test_the_first_controller_has_nothing_to_begin_with(kept, maria):
    assert not database.begin(kept)
    assert database.is_whole()


@pytest.mark.parametrize("text", [HEAD, b""])
def test_a_filling_that_was_cut_off_passes_for_nothing_and_is_begun_anew(kept, maria, text):
    """It is not written over the good dump either."""
    dumped(kept, text)
    maria.refuses = "DROP" if not text else text.decode()

    with pytest.raises(DatabaseError, match="disk full"):
        database.begin(kept)
    with pytest.raises(DatabaseError, match="not complete"):
        database.keep(kept, NOW)
    assert gzip.decompress(kept.dump.read_bytes()) == text

    maria.refuses = ""
    database.begin(kept)
    assert maria.given[-3].startswith("DROP DATABASE IF EXISTS slurm_acct_db;")


def test_a_damaged_dump_begins_nothing(kept, maria):
    kept.dump.write_bytes(gzip.compress(b"-- dump\n")[:-3])

    with pytest.raises(DatabaseError, match=r"dump\.gz"):
        database.begin(kept)


def test_a_dump_is_written_for_its_owner_alone_and_ends_the_log_before_it(kept, whole):
    assert database.keep(kept, NOW)

    assert gzip.decompress(kept.dump.read_bytes()) == HEAD
    assert kept.dump.stat().st_mode & 0o777 == 0o600
    assert whole.given[-1] == "PURGE BINARY LOGS TO 'log.000002';"
    assert {file.name for file in kept.dump.parent.iterdir()} == {"dump.gz", "log"}


@pytest.mark.parametrize(
    ("age_s", "place", "written"),
    [
        (599, "log.000003\t4", False),
        (601, "log.000003\t4", True),
        (601, "log.000002\t343", False),
        (601, "log.000002\t344", True),
    ],
)
def test_a_dump_is_written_anew_where_it_is_old_and_something_changed(kept, whole, age_s, place, written):
    whole.place = place
    dumped(kept)
    os.utime(kept.dump, (NOW - age_s, NOW - age_s))

    assert database.keep(kept, NOW) == written


def test_who_cancelled_a_job_is_kept_in_the_tables_of_jobs_alone(kept, whole):
    whole.tables = "acct_table\naws-dev_job_table\naws-dev_step_table\n"

    database.keep(kept, NOW)

    (trigger,) = [text for text in whole.given if "TRIGGER" in text]
    assert "BEFORE UPDATE ON `aws-dev_job_table`" in trigger


def test_the_log_is_for_mariadb_alone(kept, monkeypatch):
    (kept.log / "log.000001").touch()
    own = "nobody" if AS_ROOT else pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(database, "MYSQL", own)

    database.make_room(kept)

    assert [path.owner() for path in (kept.log, kept.log / "log.000001")] == [own, own]
    assert [path.stat().st_mode & 0o777 for path in (kept.log, kept.log.parent)] == [0o700, 0o711]


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """Create a file and a folder that only root can read; MariaDB has another account."""
    monkeypatch.setattr(database, "MYSQL", "nobody")
    file = tmp_path / "etc/shadow"
    file.parent.mkdir(mode=0o700)
    file.touch(mode=0o600)
    return file


def ways_in(secret):
    return [(path.owner(), path.stat().st_mode & 0o777) for path in (secret.parent, secret)]


UNTOUCHED = [("root", 0o700), ("root", 0o600)]


@ROOT_ALONE
def test_a_link_that_root_of_another_instance_left_in_the_log_gives_nothing_away(kept, secret):
    (kept.log / "log.000008").touch()
    (kept.log / "log.000009").symlink_to(secret)
    (kept.log / "log.000010").symlink_to(secret.parent)

    database.make_room(kept)

    assert (kept.log / "log.000008").owner() == "nobody"
    assert ways_in(secret) == UNTOUCHED


@ROOT_ALONE
@pytest.mark.parametrize("linked", ["queue", "queue/dev"])
@pytest.mark.parametrize(
    "make",
    [
        lambda folder: database.make_room(database.KeptAccounts(folder, folder)),
        lambda folder: folders.lay_state(folder, "nobody"),
    ],
    ids=["the log", "Slurm's state"],
)
def test_a_link_in_place_of_a_folder_or_the_one_above_is_refused(tmp_path, secret, linked, make):
    (tmp_path / linked).parent.mkdir(exist_ok=True)
    (tmp_path / linked).symlink_to(secret.parent)

    with pytest.raises(NotADirectoryError):
        make(tmp_path / "queue/dev")

    assert ways_in(secret) == UNTOUCHED


@ROOT_ALONE
def test_slurms_state_is_for_its_account_alone(tmp_path):
    folders.lay_state(tmp_path / "queue/dev", "nobody")

    there = (tmp_path / "queue", tmp_path / "queue/dev")
    assert [(path.owner(), path.stat().st_mode & 0o777) for path in there] == [("nobody", 0o700)] * 2


def test_mariadb_is_filled_without_a_log_and_then_writes_one(kept, maria, monkeypatch, tmp_path):
    """With accounts on the disk it never starts without a log, which alone has interrupted changes."""
    conf = tmp_path / "60-gpu-fleet.cnf"
    monkeypatch.setattr(accounting, "MARIADB", conf)
    logs = []

    def run(command, given=b""):
        if "systemctl" in command:
            logs.append("log_bin=" in conf.read_text())
        return maria(command, given)

    monkeypatch.setattr(database, "run", run)
    dumped(kept)

    filled = [accounting.start_database(kept), accounting.start_database(kept)]

    assert filled == [True, False]
    assert logs == [False, True, True]


def test_what_the_database_says_reaches_the_log():
    with pytest.raises(DatabaseError, match="no-such-program"):
        database.run(["no-such-program"])
    with pytest.raises(DatabaseError, match="sh: wrong"):
        database.run(["sh", "-c", "echo wrong >&2; exit 1"])


def test_associations_are_read_as_sacctmgr_prints_them():
    rows = ["root||1||", "root|root|1||", "nlp||2|cpu=64,gres/gpu=16|", "nlp|ada|parent||0"]

    assert slurm.associations(lambda _: "\n".join([*rows, "cv||1|cpu=0,gres/gpu=8|\n"])) == [
        *KNOWN,
        Association("nlp", "", 2, 16),
        Association("nlp", "ada", 0, takes_jobs=False),
        Association("cv", "", 1, 8, frozen=True),
    ]


USER_ADA = {"name": "ada", "uid": 5001, "keys": [], "team": "nlp", "team_gid": 30001, "admin": False}


def stored(**content):
    """Fake of the stack's list of users; the mover says nothing."""
    found = StoredObject({"schema_version": 1, **content}, "v")
    return Mock(newest=lambda key, at_most=None: None if key == GROWTH else found)


ROSTER = stored(users=[USER_ADA])


@pytest.fixture
def accounts(monkeypatch):
    """Set the names of users with an account on the controller."""
    made = {"ada"}
    monkeypatch.setattr(controller, "has_account", made.__contains__)
    return made


FOUND = "ClusterName=test Account=nlp UserName=ada(5001) Partition= Priority=0 ID=5\n"
MISSED = "ClusterName=test Account=nlp UserName=ada(4294967294) Partition= Priority=0 ID=5\n"


class Slurm:
    """Fake of Slurm's commands, with slurmctld's answers about accounts."""

    def __init__(self, users="", jobs=(), associations="") -> None:
        self.users, self.said, self.jobs, self.associations = users, [], jobs, associations

    def __call__(self, words):
        self.said.append(" ".join(words))
        if list(words) == ["squeue", "--json"]:
            return json.dumps({"jobs": self.jobs})
        if "qos" in words:
            return "normal|low\nlow|\n"
        if "assoc" in words:
            return self.associations
        return self.users if "assoc_mgr" in words else ""

    @property
    def changes(self):
        said = [each.removeprefix("sacctmgr --immediate ") for each in self.said]
        return [each for each in said if " show " not in each and "--json" not in each]


def test_the_controller_registers_users_and_keeps_the_dump(kept, whole, accounts):
    asked = Slurm(FOUND)

    assert controller.keep_accounts(ROSTER, kept, set(), asked)

    assert asked.changes == ["add account nlp fairshare=1", *ANEW]
    assert kept.dump.is_file()


def test_a_change_that_slurm_refuses_stops_no_other_and_is_named(kept, whole, accounts):
    asked, refused = Slurm(FOUND, associations="nlp||1||\nnlp|bob|1||\n"), ["of the round before"]

    def ask(words):
        said = asked(words)
        if "account=nlp" in words:
            raise SlurmError("sacctmgr: error: no such account")
        return said

    assert not controller.keep_accounts(ROSTER, kept, set(), ask, refused)
    assert refused == ["sacctmgr: error: no such account"]
    assert asked.changes[-2:] == [ANEW[1], "delete user name=bob"]


def test_where_slurm_does_not_answer_the_round_ends():
    silence = SlurmError("timed out")
    silence.__cause__ = TimeoutExpired("sacctmgr", 60)
    silent = Mock(side_effect=silence)

    assert accounting.changed([["add", "user", "ada"], ["add", "user", "bob"]], silent) == ["timed out"]
    assert silent.call_count == 1


def test_who_has_no_account_yet_is_registered_once_there_is_one(kept, maria, accounts):
    """Slurm would look for the account once, and then never count a share for its jobs."""
    accounts.clear()
    asked = Slurm(FOUND)
    controller.keep_accounts(ROSTER, kept, set(), asked)
    early = asked.changes

    accounts.add("ada")
    controller.keep_accounts(ROSTER, kept, set(), asked)

    assert early == []
    assert ANEW[0] in asked.changes


LEAVER = {**TWO, "user_id": 5002, "user_name": "nobody"}  # a new controller does not know bob's name
BOB = [Association("nlp", "bob")]
NO_MORE = "modify user where name=bob set maxsubmitjobs=0"


def test_the_jobs_of_who_left_are_cancelled_until_none_is_left_and_then_slurm_forgets_the_user(
    kept, maria, accounts
):
    """A job that submits itself again is one more. All end by one call, whichever of them fails."""
    asked = Slurm(FOUND, associations="nlp||1||\nnlp|ada|1||\nnlp|bob|1||\nroot|root|1||\n")
    asked.jobs = [
        {**LEAVER, "job_id": 7},
        {**LEAVER, "job_id": 8, "job_state": "COMPLETED"},
        {**TWO, "job_id": 9},
        {**TWO, "job_id": 10, "user_id": 0},
        {**LEAVER, "job_id": 11},
    ]
    controller.keep_accounts(ROSTER, kept, set(), asked)
    first, asked.said, asked.jobs = asked.changes, [], []

    controller.keep_accounts(ROSTER, kept, set(), asked)

    assert first == [NO_MORE, "scancel 7 11"]
    assert asked.changes == ["delete user name=bob"]


@pytest.mark.parametrize(
    "users", [[{"name": "carol", "uid": LEAVER["user_id"], "team": "nlp"}], []], ids=["another", "nobody"]
)
def test_the_jobs_of_who_left_end_though_somebody_has_the_number_again_or_nobody_is_left(users):
    """No instance gives carol bob's files, so the number is still bob's there (test_accounts.py)."""
    asked = Slurm(jobs=[{**LEAVER, "user_name": "bob"}])

    accounting.part_with_leavers({"users": users}, BOB, asked)

    assert asked.changes == [NO_MORE, f"scancel {LEAVER['job_id']}"]


def test_who_left_after_a_change_of_teams_hands_in_no_more_jobs():
    known = [*BOB, Association("vision", "bob", takes_jobs=False)]

    assert accounting.leavers([], known) == {"bob": True}


@pytest.mark.parametrize("roster", [{}, {"users": None}, {"users": ""}, {"users": {}}])
def test_a_roster_that_is_no_list_ends_no_jobs(roster):
    asked = Slurm(jobs=[LEAVER])

    with pytest.raises(RosterUnreadError):
        accounting.part_with_leavers(roster, BOB, asked)

    assert asked.changes == []


@pytest.mark.parametrize(
    ("users", "has_account", "anew"),
    [(MISSED, True, True), ("", True, True), (FOUND, True, False), (MISSED, False, False)],
    ids=["missed", "nobody yet", "known", "no account that it could find"],
)
def test_slurmctld_starts_anew_for_a_user_whom_it_missed_and_for_no_other(
    *, maria, kept, accounts, users, has_account, anew
):
    if not has_account:
        accounts.clear()
    asked = Slurm(users)

    controller.keep_accounts(ROSTER, kept, set(), asked)

    restart = "scontrol shutdown slurmctld"
    assert (asked.changes[-1:] == [restart], restart in asked.said) == (anew, anew)


def test_slurmctld_is_started_anew_once_until_it_has_found_the_user():
    asked, tried = Slurm(MISSED), set()
    for users in (MISSED, MISSED, FOUND, MISSED):
        asked.users = users
        controller.find_users(["ada"], tried, asked)

    assert asked.changes == ["scontrol shutdown slurmctld"] * 2


def test_an_account_is_one_of_this_computer():
    assert controller.has_account("root")
    assert not controller.has_account("nobody-of-this-name")


def refusing(words):
    if "add" in words:
        raise SlurmError("sacctmgr: error: Problem adding user: Unspecified error")
    return Slurm(FOUND)(words)


SILENT = Mock(newest=Mock(side_effect=CloudError("no answer", "")))
AWAY = Mock(side_effect=SlurmError("sacctmgr: error: Connection refused"))


@pytest.mark.parametrize(
    ("store", "ask", "left"),
    [
        (stored(), Slurm(FOUND), ["of the round before"]),
        (SILENT, Slurm(FOUND), ["of the round before"]),
        (ROSTER, AWAY, ["of the round before"]),
        (ROSTER, refusing, ["sacctmgr: error: Problem adding user: Unspecified error"] * 2),
    ],
    ids=["a cut-off list of users", "none", "no database", "a refusal"],
)
def test_the_dump_is_kept_and_the_log_purged_whatever_is_wrong_with_users(
    *, kept, whole, accounts, store, ask, left
):
    """Otherwise MariaDB's log on the shared homes would grow meanwhile."""
    refused = ["of the round before"]

    assert not controller.keep_accounts(store, kept, set(), ask, refused)
    assert refused == left
    assert kept.dump.is_file()
    assert "PURGE BINARY LOGS TO 'log.000002';" in whole.given


def test_a_dump_that_cannot_be_written_is_tried_again_and_keeps_no_user_from_a_team(kept, whole, accounts):
    whole.refuses, asked = "PURGE", Slurm(FOUND)

    assert not controller.keep_accounts(ROSTER, kept, set(), asked)
    assert ANEW[0] in asked.changes
