"""The accounts of the queue: who works for which team, and the dump that outlives the controller's disk."""

import gzip

import pytest

from image.instance.errors import CloudError
from image.queue import accounting, controller, slurm
from image.queue.errors import DatabaseError, RosterUnreadError, SlurmError
from image.queue.slurm import Association
from image.reaper.store import StoredObject

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


def test_a_new_team_begins_with_its_share_and_its_limit():
    assert changes(limits=NLP, ada="nlp")[0] == "add account nlp fairshare=2 grptres=gres/gpu=16"


@pytest.mark.parametrize(
    ("team", "limits", "said"),
    [
        (Association("nlp", ""), NLP, ["fairshare=2 grptres=gres/gpu=16"]),
        (Association("nlp", "", 2, 16), NLP, []),
        (Association("nlp", "", 2, 16), {}, ["fairshare=1 grptres=gres/gpu=-1"]),
        (Association("nlp", "", 2), {"nlp": {"share": 2, "max_gpus": None}}, []),
    ],
)
def test_a_team_has_what_the_stack_file_says_and_no_more(team, limits, said):
    known = [team, Association("nlp", "ada")]

    assert changes(known, limits, ada="nlp") == [
        f"modify account where name=nlp set {words}" for words in said
    ]


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


def test_a_user_who_changes_teams_works_for_the_new_one():
    known = [Association(team, user) for team in ("vision", "nlp") for user in ("", "bob")]

    assert changes([*known, Association("vision", "ada")], ada="nlp") == [
        "add user ada account=nlp fairshare=1",
        "modify user where name=ada set defaultaccount=nlp",
    ]


def test_a_team_cannot_take_slurms_own_account():
    assert accounting.teams_of({"users": [{"name": "eve", "team": "root"}]}) == {"eve": "no-team"}


@pytest.mark.parametrize(
    "roster", [{}, {"users": [{"name": "ada"}]}, {"users": [{"name": "ada", "team": "x y"}]}, {"users": [7]}]
)
def test_users_that_make_no_sense_are_named_and_nothing_follows(roster):
    with pytest.raises(RosterUnreadError, match=r"accounts\.json"):
        accounting.teams_of(roster)


class Database:
    """MariaDB's programs, as far as they are called."""

    def __init__(self, tables: int = 0, text: bytes = b"-- dump\n") -> None:
        self.tables, self.text, self.commands, self.given = tables, text, [], b""

    def __call__(self, command, given=b""):
        self.commands.append(" ".join(command))
        if "--skip-column-names" in command:
            return f"{self.tables}\n".encode()
        if "runuser" in command:
            self.given = given
        return self.text if command[0] == "mariadb-dump" else b""


@pytest.fixture
def database(monkeypatch):
    made = Database()
    monkeypatch.setattr(accounting, "_database", made)
    return made


def test_a_new_database_begins_with_the_dump_and_not_as_its_root(tmp_path, database):
    dump = tmp_path / "dump.gz"
    accounting.keep(dump)

    assert accounting.begin(dump)

    assert database.given == b"-- dump\n"
    assert database.commands[-1] == "runuser -u slurm -- mariadb slurm_acct_db"


def test_a_database_that_is_there_is_left_as_it_is(tmp_path, database):
    dump = tmp_path / "dump.gz"
    accounting.keep(dump)
    database.tables = 12

    assert not accounting.begin(dump)
    assert database.given == b""


def test_the_first_controller_has_no_dump_to_begin_with(tmp_path, database):
    assert not accounting.begin(tmp_path / "none.gz")


def test_a_dump_that_cannot_be_loaded_leaves_no_half_of_it(tmp_path, database, monkeypatch):
    dump = tmp_path / "dump.gz"
    accounting.keep(dump)

    def refuses(command, given=b""):
        if "runuser" in command:
            raise DatabaseError("mariadb: disk full")
        if b"DROP" in given:
            database.commands.append(given.decode())
        return database(command, given)

    monkeypatch.setattr(accounting, "_database", refuses)

    with pytest.raises(DatabaseError, match="disk full"):
        accounting.begin(dump)
    assert "DROP DATABASE slurm_acct_db;" in database.commands


def test_a_damaged_dump_begins_nothing(tmp_path, database):
    dump = tmp_path / "dump.gz"
    dump.write_bytes(gzip.compress(b"-- dump\n")[:-3])

    with pytest.raises(DatabaseError, match=r"dump\.gz"):
        accounting.begin(dump)


def test_a_dump_is_written_where_something_changed_and_for_its_owner_alone(tmp_path, database):
    dump = tmp_path / "dump.gz"

    assert accounting.keep(dump)
    assert not accounting.keep(dump)
    database.text = b"-- more\n"
    assert accounting.keep(dump)
    assert gzip.decompress(dump.read_bytes()) == b"-- more\n"
    assert dump.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["dump.gz"]


def test_what_the_database_says_reaches_the_log():
    with pytest.raises(DatabaseError, match="no-such-program"):
        accounting._database(["no-such-program"])
    with pytest.raises(DatabaseError, match="sh: wrong"):
        accounting._database(["sh", "-c", "echo wrong >&2; exit 1"])


def test_associations_are_read_as_sacctmgr_prints_them():
    said = "root||1|\nroot|root|1|\nnlp||2|cpu=64,gres/gpu=16\nnlp|ada|parent|\n"

    assert slurm.associations(lambda _: said) == [
        *KNOWN,
        Association("nlp", "", 2, 16),
        Association("nlp", "ada", 0),
    ]


class Roster:
    """The stack's word of its users."""

    def newest(self, key):
        user = {"name": "ada", "uid": 5001, "keys": [], "team": "nlp", "team_gid": 30001, "admin": False}
        return StoredObject({"schema_version": 1, "users": [user]}, "v")


@pytest.fixture
def accounts(monkeypatch):
    """Names of those who have an account on the controller."""
    made = {"ada"}
    monkeypatch.setattr(controller, "has_account", made.__contains__)
    return made


FOUND = "ClusterName=test Account=nlp UserName=ada(5001) Partition= Priority=0 ID=5\n"
MISSED = "ClusterName=test Account=nlp UserName=ada(4294967294) Partition= Priority=0 ID=5\n"


class Slurm:
    """Its commands, and what slurmctld says of the accounts that it found."""

    def __init__(self, users: str) -> None:
        self.users, self.said = users, []

    def __call__(self, words):
        self.said.append(" ".join(words))
        if "qos" in words:
            return "normal|low\nlow|\n"
        return self.users if "assoc_mgr" in words else ""

    @property
    def changes(self):
        return [said for said in self.said if " show " not in said]


def test_the_controller_registers_users_and_keeps_the_dump(tmp_path, database, accounts):
    asked = Slurm(FOUND)

    done = controller.keep_accounts(Roster(), tmp_path / "dump.gz", set(), asked)

    assert done
    assert asked.changes == [
        "sacctmgr --immediate add account nlp fairshare=1",
        "sacctmgr --immediate add user ada account=nlp fairshare=1",
        "sacctmgr --immediate modify user where name=ada set defaultaccount=nlp",
    ]
    assert (tmp_path / "dump.gz").is_file()


def test_who_has_no_account_yet_is_registered_once_there_is_one(tmp_path, database, accounts):
    """Slurm would look for the account once, and count no share for its jobs for good."""
    accounts.clear()
    asked = Slurm(FOUND)
    controller.keep_accounts(Roster(), tmp_path / "dump.gz", set(), asked)
    early = asked.changes

    accounts.add("ada")
    controller.keep_accounts(Roster(), tmp_path / "dump.gz", set(), asked)

    assert early == []
    assert "sacctmgr --immediate add user ada account=nlp fairshare=1" in asked.changes


@pytest.mark.parametrize("users", [MISSED, ""])
def test_slurmctld_starts_anew_for_a_user_whom_it_missed(tmp_path, database, accounts, users):
    asked = Slurm(users)

    controller.keep_accounts(Roster(), tmp_path / "dump.gz", set(), asked)

    assert asked.changes[-1] == "scontrol shutdown slurmctld"


@pytest.mark.parametrize(("users", "has_account"), [(FOUND, True), (MISSED, False)])
def test_slurmctld_is_not_started_anew_for_whom_it_knows_or_could_not_find(
    tmp_path, database, accounts, users, has_account
):
    if not has_account:
        accounts.clear()
    asked = Slurm(users)

    controller.keep_accounts(Roster(), tmp_path / "dump.gz", set(), asked)

    assert "scontrol shutdown slurmctld" not in asked.said


def test_slurmctld_is_started_anew_once_until_it_has_found_the_user():
    asked, tried = Slurm(MISSED), set()
    for users in (MISSED, MISSED, FOUND, MISSED):
        asked.users = users
        controller.find_users(["ada"], tried, asked)

    assert asked.changes == ["scontrol shutdown slurmctld"] * 2


def test_an_account_is_one_of_this_computer():
    assert controller.has_account("root")
    assert not controller.has_account("nobody-of-this-name")


def test_a_database_that_is_away_spoils_no_dump_and_is_asked_again(tmp_path, database):
    def silent(_words):
        raise SlurmError("sacctmgr: error: Connection refused")

    assert not controller.keep_accounts(Roster(), tmp_path / "dump.gz", set(), silent)
    assert not list(tmp_path.iterdir())


def test_users_that_cannot_be_read_change_nothing(tmp_path, database):
    class Silent:
        def newest(self, key):
            raise CloudError("no answer", "")

    assert not controller.keep_accounts(Silent(), tmp_path / "dump.gz", set(), lambda _: "")
    assert not list(tmp_path.iterdir())
