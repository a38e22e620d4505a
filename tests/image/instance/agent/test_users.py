"""Users seen on an instance: the agent reports each new name once, and the sweep reads it."""

import boto3
import pytest

from gpu_fleet_image.core import instance_file
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.model import Instance, Tie, User
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent.aws import AgentCloud
from gpu_fleet_image.instance.agent.users import LONGEST, MOST_USERS, SAY_AGAIN_AFTER_S, Users
from gpu_fleet_image.providers.alicloud.oss import OssStore, users_key
from gpu_fleet_image.providers.aws.connect import users as users_of
from tests.image.alicloud_world import Bucket
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.situations import NOW
from tests.image.world import World

WORDS = ["grace:login+process", "ada:launch"]
SEEN = [User.of(word) for word in WORDS]


class Heard:
    """Record of the reports to the sweep, with a clock that a test advances."""

    def __init__(self, folder):
        self.file, self.said, self.now_s, self.fails = folder / "users", [], 0.0, False
        self.users = self.start()

    def start(self):
        return Users(self.say, self.file, lambda: self.now_s)

    def say(self, users):
        if self.fails:
            raise CloudError("CreateTags: UnauthorizedOperation")
        self.said.append([str(user) for user in users])

    def saw(self, *words):
        """Report the users of a poll, five minutes after the last one: ``name:tie`` each."""
        self.now_s += SAY_AGAIN_AFTER_S
        self.users.saw([(name, Tie(tie)) for name, _, tie in (word.partition(":") for word in words)])


@pytest.fixture
def heard(tmp_path):
    return Heard(tmp_path)


def test_each_new_name_and_what_it_did_is_said_once_and_the_newest_comes_first(heard):
    for names in (["ada:login"], ["ada:login"], ["grace:process", "grace:launch", "ada:login"], []):
        heard.saw(*names)
    heard.saw("ada:process")

    assert heard.said == [
        ["ada:login"],
        ["grace:launch+process", "ada:login"],
        ["grace:launch+process", "ada:login+process"],
    ]


def test_a_restarted_agent_remembers_who_was_here(heard):
    heard.saw("ada:login")

    heard.users = heard.start()
    heard.saw("grace:login", "ada:login")

    assert heard.said == [["ada:login"], ["grace:login", "ada:login"]]


def test_what_is_no_login_name_of_a_user_is_not_said(heard):
    heard.saw(*(f"{name}:login" for name in ("root", "nobody", "", "a b", "café", "x" * 65, "<!channel>")))

    assert heard.said == []


def test_what_is_said_fits_a_tag(heard):
    for name in (f"{number:02d}{'x' * 30}" for number in range(20)):
        heard.saw(f"{name}:login", f"{name}:process")

    assert len(" ".join(heard.said[-1])) <= LONGEST
    assert len(heard.said[-1]) <= MOST_USERS
    assert heard.said[-1][0].startswith("19")


def test_what_could_not_be_said_is_said_later(heard):
    said = []
    for heard.fails, words in ((True, ["ada:login"]), (False, ["ada:login"]), (False, [])):
        heard.saw(*words)
        said.append(list(heard.said))

    assert said == [[], [], [["ada:login"]]]


def test_where_many_take_turns_they_are_not_said_every_minute(heard):
    everybody = [(f"u{number:02d}", Tie.LOGGED_IN) for number in range(MOST_USERS + 4)]

    for _ in range(60):
        heard.now_s += 60
        heard.users.saw(everybody)

    assert 1 < len(heard.said) <= 12


def test_a_word_that_no_agent_writes_names_no_user():
    words = ["", "ada", "ada:", ":login", "ada:admin", "<b>:login", "a\nb:login", None, 7]

    assert [word for word in words if User.of(word) is not None] == []


def test_on_aws_the_sweep_reads_the_tag_that_the_agent_set(fleet, tmp_path):
    ec2 = boto3.client("ec2", region_name="us-east-1")
    made = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    (tmp_path / "instance.toml").write_text(INSTANCE_TOML)

    AgentCloud(instance_file.load(tmp_path / "instance.toml"), None).name_users(made, SEEN)

    found = ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"][0]
    tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
    assert users_of(Instance(made, "", "running", NOW, tags)) == WORDS


def test_on_oss_the_newest_word_counts_and_no_list_is_asked_for():
    world, key = World(), users_key("dev", "i-1")
    store = OssStore(Bucket(world), Calls(world.clock), "oss://records/reaper")
    for users in (["ada"], WORDS):
        store.put(key, {"users": users})

    assert (key, store.newest(key).content) == ("users/dev/i-1.json", {"users": WORDS})
    assert set(world.calls) == {"PutObject", "GetObject"}
