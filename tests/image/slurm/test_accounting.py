"""Accounts of the queue: users and their teams, and the dump that outlives the controller's disk."""

import gzip
import json
import os
import pwd
from subprocess import TimeoutExpired

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


def changes(known=(), limits=None, **teams):
    users = [{"name": name, "team": team} for name, team in teams.items()]
    wanted = accounting.teams_of({"users": users})
    given = accounting.limits_of({"teams": limits or {}})
    return [" ".join(words) for words in accounting.shares(wanted, [*KNOWN, *known], given)]


def test_a_team_is_an_account_with_its_users_and_who_has_none_shares_one():
    assert changes(ada="nlp", bob="") == [
        "add account nlp fairshare=1",
        "add account no-team fairshare=1",
        "add user ada account=nlp fairshare=1",
        "modify user where name=ada set defaultaccount=nlp",
        "add user bob account=no-team fairshare=1",
        "modify user where name=bob set defaultaccount=no-team",
    ]


def test_what_slurm_knows_is_not_said_again():
    assert changes([Association("nlp", ""), Association("nlp", "ada")], ada="nlp") == []


NLP = {"nlp": {"share": 2, "max_gpus": 16}}
FROZEN = {"nlp": {"share": 2, "max_gpus": 16, "frozen": "its budget is spent"}}


def test_a_new_team_begins_with_its_share_and_its_limit():
    assert changes(limits=NLP, ada="nlp")[0] == "add account nlp fairshare=2 grptres=gres/gpu=16"


@pytest.mark.parametrize(
    ("team", "limits", "said"),
    [
        (Association("nlp", ""), NLP, ["fairshare=2 grptres=gres/gpu=16"]),
        (Association("nlp", "", 2, 16), NLP, []),
        (Association("nlp", "", 2, 16), {}, ["fairshare=1 grptres=gres/gpu=-1"]),
        (Association("nlp", "", 2), {"nlp": {"share": 2, "max_gpus": None}}, []),
        (Association("nlp", "", 2, 16), FROZEN, ["fairshare=2 grptres=gres/gpu=16,cpu=0"]),
        (Association("nlp", "", 2, 16, frozen=True), FROZEN, []),
        (Association("nlp", "", 2, 16, frozen=True), NLP, ["fairshare=2 grptres=gres/gpu=16,cpu=-1"]),
    ],
)
def test_a_team_has_what_the_stack_file_says_and_no_more(team, limits, said):
    known = [team, Association("nlp", "ada")]

    assert changes(known, limits, ada="nlp") == [
        f"modify account where name=nlp set {words}" for words in said
    ]


@pytest.mark.parametrize(
    ("frozen", "limits", "said"),
    [
        (False, FROZEN, ["fairshare=2 grptres=gres/gpu=16,cpu=0"]),
        (True, NLP, ["fairshare=2 grptres=gres/gpu=16,cpu=-1"]),
        (True, {}, ["fairshare=1 grptres=gres/gpu=-1,cpu=-1"]),
    ],
)
def test_jobs_that_wait_in_a_team_which_all_have_left_are_frozen_and_thawed_with_it(frozen, limits, said):
    refused = Association("nlp", "ada", takes_jobs=False)
    known = [Association("nlp", "", 2, 16, frozen=frozen), Association("cv", ""), refused]

    assert changes([*known, Association("cv", "ada")], limits, ada="cv") == [
        f"modify account where name=nlp set {words}" for words in said
    ]


@pytest.mark.parametrize("teams", [{}, {"ada": "cv"}])
def test_an_account_that_an_operator_has_made_and_closed_stays_so(teams):
    known = [
        Association("guests", "", 1, 0, frozen=True),
        Association("guests", "eve"),
        Association("cv", ""),
    ]

    assert changes([*known, Association("cv", "ada")], **teams) == []


@pytest.mark.parametrize("teams", [7, {"nlp": {"gpus": 3}}, {"nlp": 7}])
def test_limits_that_make_no_sense_are_refused(teams):
    with pytest.raises(RosterUnreadError, match=r"accounts\.json: teams"):
        accounting.limits_of({"teams": teams})


def test_jobs_of_the_qos_low_give_way_to_all_others():
    assert [" ".join(words) for words in accounting.qualities({"normal": []})] == [
        "add qos low priority=0 gracetime=120",
        "modify qos where name=normal set priority=1 preempt+=low",
    ]


def test_a_qos_that_an_operator_has_changed_stays_so():
    known = slurm.preempted(lambda _: "normal|low,scavenger\nlow|\nscavenger|\n")

    assert accounting.qualities(known) == []


def test_a_user_who_changes_teams_works_for_the_new_one_alone():
    """Else `sbatch --account` would go round the limit, or the freeze, of the new team."""
    known = [Association("vision", ""), Association("nlp", ""), Association("vision", "ada")]
    refused = [Association("vision", "ada", takes_jobs=False), Association("nlp", "ada")]

    assert changes(known, ada="nlp") == [
        "add user ada account=nlp fairshare=1",
        "modify user where name=ada set defaultaccount=nlp",
        "modify user where name=ada account=vision set maxsubmitjobs=0",
    ]
    assert changes([*known[:2], *refused], ada="nlp") == []
    assert changes([*known[:2], *refused], ada="vision") == [
        "modify user where name=ada account=vision set maxsubmitjobs=-1",
        "modify user where name=ada account=nlp set maxsubmitjobs=0",
    ]


def test_a_team_cannot_take_slurms_own_account():
    assert accounting.teams_of({"users": [{"name": "eve", "team": "root"}]}) == {"eve": "no-team"}


@pytest.mark.parametrize(
    "roster", [{}, {"users": [{"name": "ada"}]}, {"users": [{"name": "ada", "team": "x y"}]}, {"users": [7]}]
)
def test_users_that_make_no_sense_are_named_and_nothing_follows(roster):
    with pytest.raises(RosterUnreadError, match=r"accounts\.json"):
        accounting.teams_of(roster)


HEAD = b"-- CHANGE MASTER TO MASTER_LOG_FILE='log.000002', MASTER_LOG_POS=343;\n"
NOW = 2_000_000_000.0


class Database:
    """Fake of MariaDB's programs that are called.

    Attributes:
        place: position in its log.
        refuses: commands that it refuses.
    """

    def __init__(self, data) -> None:
        self.text, self.commands, self.given, self.data = HEAD, [], [], data
        self.tables, self.place, self.refuses = "", "log.000002\t343", ""

    @property
    def whole(self):
        return (self.data / database.WHOLE).is_dir()

    @whole.setter
    def whole(self, is_whole):
        if is_whole:
            (self.data / database.WHOLE).mkdir(exist_ok=True)

    def __call__(self, command, given=b""):
        self.commands.append(" ".join(command))
        asked = given.decode()
        if "--skip-column-names" in command:
            return {database.TABLES: self.tables}.get(asked, f"{self.place}\t\t\n").encode()
        if self.refuses and self.refuses in asked:
            raise DatabaseError("mariadb: disk full")
        self.given.append(asked)
        self.whole = self.whole or database.WHOLE in asked
        return self.text if command[0] == "mariadb-dump" else b""


@pytest.fixture
def maria(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    made = Database(tmp_path / "data")
    monkeypatch.setattr(database, "DATA", made.data)
    monkeypatch.setattr(database, "run", made)
    monkeypatch.setattr(database, "_changes", lambda file, at: f"{file.name}@{at}".encode())
    return made


@pytest.fixture
def kept(tmp_path):
    (tmp_path / "kept/log").mkdir(parents=True)
    return database.KeptAccounts(tmp_path / "kept/dump.gz", tmp_path / "kept/log")


def dumped(kept, text=HEAD, logged=()):
    kept.dump.write_bytes(gzip.compress(text))
    for name in logged:
        (kept.log / name).touch()


def test_a_new_database_begins_with_the_dump_and_not_as_its_root(kept, maria):
    dumped(kept)

    assert database.begin(kept)

    assert maria.given[1] == HEAD.decode()
    assert "runuser -u slurm -- mariadb slurm_acct_db" in maria.commands


def test_what_changed_since_the_dump_comes_from_the_log_of_mariadb_as_its_own_account(kept, maria):
    dumped(kept, logged=("log.000001", "log.000002", "log.000003", "log.index", "other"))

    database.begin(kept)

    assert maria.given[2:4] == ["log.000002@343", "log.000003@0"]
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


def test_a_database_that_is_whole_is_left_as_it_is(kept, maria):
    dumped(kept)
    maria.whole = True

    assert not database.begin(kept)
    assert maria.given == []


def test_the_first_controller_has_nothing_to_begin_with(kept, maria):
    assert not database.begin(kept)
    assert maria.whole


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


def test_a_dump_is_written_for_its_owner_alone_and_ends_the_log_before_it(kept, maria):
    maria.whole = True

    assert database.keep(kept, NOW)

    assert gzip.decompress(kept.dump.read_bytes()) == HEAD
    assert kept.dump.stat().st_mode & 0o777 == 0o600
    assert maria.given[-1] == "PURGE BINARY LOGS TO 'log.000002';"
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
def test_a_dump_is_written_anew_where_it_is_old_and_something_changed(kept, maria, age_s, place, written):
    maria.whole, maria.place = True, place
    dumped(kept)
    os.utime(kept.dump, (NOW - age_s, NOW - age_s))

    assert database.keep(kept, NOW) == written


def test_who_cancelled_a_job_is_kept_in_the_tables_of_jobs_alone(kept, maria):
    maria.whole, maria.tables = True, "acct_table\naws-dev_job_table\naws-dev_step_table\n"

    database.keep(kept, NOW)

    (trigger,) = [text for text in maria.given if "TRIGGER" in text]
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
@pytest.mark.parametrize("linked", ["log", "log.parent"])
def test_a_link_in_place_of_the_logs_folder_is_refused(tmp_path, secret, linked):
    planted = tmp_path / "kept" if linked == "log.parent" else tmp_path / "kept/log"
    planted.parent.mkdir(exist_ok=True)
    planted.symlink_to(secret.parent)
    kept = database.KeptAccounts(tmp_path / "dump.gz", tmp_path / "kept/log")

    with pytest.raises(NotADirectoryError):
        database.make_room(kept)

    assert ways_in(secret) == UNTOUCHED


@ROOT_ALONE
@pytest.mark.parametrize("linked", ["queue", "queue/dev"])
def test_a_link_in_place_of_slurms_state_is_refused(tmp_path, secret, linked):
    (tmp_path / linked).parent.mkdir(exist_ok=True)
    (tmp_path / linked).symlink_to(secret.parent)

    with pytest.raises(NotADirectoryError):
        folders.lay_state(tmp_path / "queue/dev", "nobody")

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
    said = (
        "root||1||\nroot|root|1||\nnlp||2|cpu=64,gres/gpu=16|\nnlp|ada|parent||0\ncv||1|cpu=0,gres/gpu=8|\n"
    )

    assert slurm.associations(lambda _: said) == [
        *KNOWN,
        Association("nlp", "", 2, 16),
        Association("nlp", "ada", 0, takes_jobs=False),
        Association("cv", "", 1, 8, frozen=True),
    ]


class Roster:
    """Fake of the stack's list of users; the mover says nothing."""

    def newest(self, key, at_most=None):
        if key == GROWTH:
            return None
        user = {"name": "ada", "uid": 5001, "keys": [], "team": "nlp", "team_gid": 30001, "admin": False}
        return StoredObject({"schema_version": 1, "users": [user]}, "v")


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

    def __init__(self, users: str) -> None:
        self.users, self.said = users, []
        self.jobs, self.associations = [], ""

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
        return [said for said in self.said if " show " not in said and "--json" not in said]


def test_the_controller_registers_users_and_keeps_the_dump(kept, maria, accounts):
    asked, maria.whole = Slurm(FOUND), True

    done = controller.keep_accounts(Roster(), kept, set(), asked)

    assert done
    assert asked.changes == [
        "sacctmgr --immediate add account nlp fairshare=1",
        "sacctmgr --immediate add user ada account=nlp fairshare=1",
        "sacctmgr --immediate modify user where name=ada set defaultaccount=nlp",
    ]
    assert kept.dump.is_file()


def test_a_change_that_slurm_refuses_stops_no_other_and_is_named(kept, maria, accounts):
    asked, refused, maria.whole = Slurm(FOUND), ["of the round before"], True
    asked.associations = "nlp||1||\nnlp|bob|1||\n"

    def ask(words):
        said = asked(words)
        if "account=nlp" in words:
            raise SlurmError("sacctmgr: error: no such account")
        return said

    assert not controller.keep_accounts(Roster(), kept, set(), ask, refused)
    assert refused == ["sacctmgr: error: no such account"]
    assert asked.changes[-2:] == [
        "sacctmgr --immediate modify user where name=ada set defaultaccount=nlp",
        "sacctmgr --immediate delete user name=bob",
    ]


def test_where_slurm_does_not_answer_the_round_ends():
    tried = []

    def silent(words):
        tried.append(words)
        raise SlurmError("timed out") from TimeoutExpired("sacctmgr", 60)

    assert accounting.changed([["add", "user", "ada"], ["add", "user", "bob"]], silent) == ["timed out"]
    assert len(tried) == 1


def test_who_has_no_account_yet_is_registered_once_there_is_one(kept, maria, accounts):
    """Slurm would look for the account once, and then never count a share for its jobs."""
    accounts.clear()
    asked = Slurm(FOUND)
    controller.keep_accounts(Roster(), kept, set(), asked)
    early = asked.changes

    accounts.add("ada")
    controller.keep_accounts(Roster(), kept, set(), asked)

    assert early == []
    assert "sacctmgr --immediate add user ada account=nlp fairshare=1" in asked.changes


LEAVER = {**TWO, "user_id": 5002, "user_name": "nobody"}  # a new controller does not know bob's name


def test_the_jobs_of_who_left_are_cancelled_until_none_is_left_and_then_slurm_forgets_the_user(
    kept, maria, accounts
):
    """A job that submits itself again is one more. All end by one call, whichever of them fails."""
    asked = Slurm(FOUND)
    asked.associations = "nlp||1||\nnlp|ada|1||\nnlp|bob|1||\nroot|root|1||\n"
    asked.jobs = [
        {**LEAVER, "job_id": 7},
        {**LEAVER, "job_id": 8, "job_state": "COMPLETED"},
        {**TWO, "job_id": 9},
        {**TWO, "job_id": 10, "user_id": 0},
        {**LEAVER, "job_id": 11},
    ]
    controller.keep_accounts(Roster(), kept, set(), asked)
    first, asked.said = asked.changes, []
    asked.jobs = []

    controller.keep_accounts(Roster(), kept, set(), asked)

    assert first == ["sacctmgr --immediate modify user where name=bob set maxsubmitjobs=0", "scancel 7 11"]
    assert asked.changes == ["sacctmgr --immediate delete user name=bob"]


def test_the_jobs_of_who_left_end_though_somebody_has_the_number_again():
    """No instance gives carol bob's files, so the number is still bob's there (test_accounts.py)."""
    asked = Slurm(FOUND)
    asked.jobs = [{**LEAVER, "user_name": "bob"}]
    roster = {"users": [{"name": "carol", "uid": LEAVER["user_id"], "team": "nlp"}]}

    accounting.part_with_leavers(roster, [Association("nlp", "bob")], asked)

    assert asked.changes == [
        "sacctmgr --immediate modify user where name=bob set maxsubmitjobs=0",
        f"scancel {LEAVER['job_id']}",
    ]


def test_who_left_and_comes_back_hands_in_jobs_again():
    known = [Association("nlp", ""), Association("nlp", "ada", takes_jobs=False)]

    assert changes(known, ada="nlp") == ["modify user where name=ada account=nlp set maxsubmitjobs=-1"]


def test_who_left_after_a_change_of_teams_hands_in_no_more_jobs():
    known = [Association("nlp", "bob"), Association("vision", "bob", takes_jobs=False)]

    assert accounting.leavers([], known) == {"bob": True}


def test_a_roster_of_nobody_ends_the_jobs_of_all_as_it_locks_their_accounts():
    asked = Slurm(FOUND)
    asked.jobs = [LEAVER]

    accounting.part_with_leavers({"users": []}, [Association("nlp", "bob")], asked)

    assert asked.changes[-1] == f"scancel {LEAVER['job_id']}"


@pytest.mark.parametrize("roster", [{}, {"users": None}, {"users": ""}, {"users": {}}])
def test_a_roster_that_is_no_list_ends_no_jobs(roster):
    asked = Slurm(FOUND)
    asked.jobs = [LEAVER]

    with pytest.raises(RosterUnreadError):
        accounting.part_with_leavers(roster, [Association("nlp", "bob")], asked)

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

    controller.keep_accounts(Roster(), kept, set(), asked)

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


def test_a_database_that_is_away_spoils_no_dump_and_is_asked_again(kept, maria):
    def silent(_words):
        raise SlurmError("sacctmgr: error: Connection refused")

    refused = ["of the round before"]
    assert not controller.keep_accounts(Roster(), kept, set(), silent, refused)
    assert not kept.dump.exists()
    assert refused == ["of the round before"]


def test_users_that_cannot_be_read_change_nothing(kept, maria):
    class Silent:
        def newest(self, key):
            raise CloudError("no answer", "")

    assert not controller.keep_accounts(Silent(), kept, set(), lambda _: "")
    assert not kept.dump.exists()


class Damaged:
    """Fake of a truncated list of users."""

    def newest(self, key):
        return StoredObject({"schema_version": 1}, "v")


def refusing(words):
    if "add" in words:
        raise SlurmError("sacctmgr: error: Problem adding user: Unspecified error")
    return Slurm(FOUND)(words)


@pytest.mark.parametrize(("store", "ask"), [(Damaged(), Slurm(FOUND)), (Roster(), refusing)])
def test_the_dump_is_kept_and_the_log_purged_whatever_is_wrong_with_users(kept, maria, accounts, store, ask):
    """Otherwise MariaDB's log on the shared homes would grow meanwhile."""
    maria.whole = True

    assert not controller.keep_accounts(store, kept, set(), ask)
    assert kept.dump.is_file()
    assert "PURGE BINARY LOGS TO 'log.000002';" in maria.given


def test_a_dump_that_cannot_be_written_is_tried_again_and_keeps_no_user_from_a_team(kept, maria, accounts):
    maria.whole, maria.refuses = True, "PURGE"
    asked = Slurm(FOUND)

    assert not controller.keep_accounts(Roster(), kept, set(), asked)
    assert "sacctmgr --immediate add user ada account=nlp fairshare=1" in asked.changes
