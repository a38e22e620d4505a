"""Recipients and content of notices: in text for every channel, without repetition every ten minutes."""

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from gpu_fleet_image.controllers.sweep.carry_out import Tools, mark
from gpu_fleet_image.controllers.sweep.results import Done
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.model import Decision, Plan, Verdict
from gpu_fleet_image.core.notify.notifier import Notifier, Reach, Roster, due_alerts, flooding_text, roster_in
from gpu_fleet_image.core.notify.webhooks import LONGEST_TEXT, Webhook
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.instance.agent.users import LONGEST
from gpu_fleet_image.providers.aws.notify import Topic
from tests.image.situations import NOW, POLICY, make_instance


def roster_of(users=None, operators=(), sender=None, webhooks=()):
    return Roster(users or {}, operators, sender, webhooks)


class Sns:
    """Fake of SNS that accepts only valid calls of Publish; some subscribers never confirmed."""

    def __init__(self, *confirmed, pending=()):
        self.subjects, self.messages, self.users = [], [], []
        arns = dict.fromkeys(pending, "PendingConfirmation")
        arns |= dict.fromkeys(confirmed, "arn:aws:sns:us-east-1:123456789012:alarms:1")
        self.subscriptions = [{"Endpoint": each, "SubscriptionArn": arn} for each, arn in arns.items()]

    def publish(self, TopicArn, Subject, Message, MessageAttributes=None):  # noqa: N803 - boto3's names
        assert Subject.isascii()
        assert Subject.isprintable()
        assert len(Subject) < 100
        self.subjects.append(Subject)
        self.messages.append(Message)
        if MessageAttributes is not None:
            self.users += json.loads(MessageAttributes["user"]["StringValue"])
        return {}

    def list_subscriptions_by_topic(self, TopicArn, NextToken="0"):  # noqa: N803 - boto3's names
        at = int(NextToken)
        page = self.subscriptions[at : at + 1]
        more = {"NextToken": str(at + 1)} if at + 1 < len(self.subscriptions) else {}
        return {"Subscriptions": page, **more}


@dataclass
class Team:
    """Channels to users: a roster, the users of instances, a mail server and chat rooms that may refuse."""

    roster: Roster
    users: dict[str, list[str]] = field(default_factory=dict)
    refuses: tuple[str, ...] = ()
    mails: list[tuple[str, str]] = field(default_factory=list)
    posts: list[Any] = field(default_factory=list)

    def reach(self):
        def mail(sender, address, subject, message):
            if address in self.refuses:
                raise CloudError(f"SendEmail: MessageRejected: {address}")
            self.mails.append((address, message))

        def post(rooms, subject, message):
            self.posts += [(address, message) for address in rooms.values()]
            return {room: "HTTP 404" for room in rooms if room.secret in self.refuses}

        def users(instance):
            return self.users.get(instance.id, [])

        return Reach(lambda: self.roster, users, mail, lambda name: f"https://{name}.example.com/x", post)


def notifier(sns=None, reach=None, deadline=None):
    return Notifier(Topic(sns or Sns(), Calls(lambda: NOW, deadline=deadline), "arn:aws:sns:::alarms"), reach)


def announce(team, sns, *instance_ids, deadline=None, **reach):
    """Announce the marks of these instances, with some channels to users replaced."""
    decisions = [owned("vision", instance_id) for instance_id in instance_ids]
    return notifier(sns, replace(team.reach(), **reach), deadline).announce("aws-dev", decisions)


def owned(owner, instance_id="i-1"):
    return Decision(make_instance(instance_id, tags={"gpu-fleet:owner": owner}), Verdict.MARK, "idle")


def ids(decisions):
    return [decision.instance.id for decision in decisions]


ADA, GRACE, LEAD, OPS = (f"{name}@example.com" for name in ("ada", "grace", "lead", "ops"))
PEOPLE = {"ada": ADA, "grace": GRACE, "vision": LEAD}
SENDER = "fleet@example.com"
ROOMS = tuple(Webhook("slack", f"team-{name}") for name in "abc")
ON_I1 = {"i-1": ["ada:login"]}


def test_each_user_gets_one_mail_of_their_own_instances_with_who_was_seen_and_the_two_commands():
    users = {"i-1": ["ada:login+process"], "i-2": ["grace:process", "ada:launch"]}
    team = Team(roster_of(PEOPLE, sender=SENDER), users)

    announced = announce(team, Sns(), "i-1", "i-2")

    (_, adas), (_, graces), _ = team.mails
    assert [address for address, _ in team.mails] == [ADA, GRACE, LEAD]
    assert "- i-1 " in adas
    assert "owner: vision; seen: ada logged in and owned processes" in adas
    assert "- i-2 " in adas
    assert "i-1 " not in graces
    assert "owner: vision; seen: grace owned processes, ada launched a job" in graces
    assert "gpu-fleet keep 8h --reason" in graces
    assert "gpu-fleet release --instance i-2 --stack aws-dev" in graces
    assert (ids(announced.notified), announced.unreached, announced.problems) == (["i-1", "i-2"], {}, [])


def test_the_topic_learns_which_users_a_message_is_for_once_for_each_owner():
    sns, users = Sns(ADA, LEAD, GRACE), ON_I1 | {"i-2": ["grace:login"]}

    announced = announce(Team(roster_of(PEOPLE), users), sns, "i-1", "i-2")

    assert (sns.users, announced.unreached) == (["ada", "vision", "grace"], {})
    assert len(sns.subjects) == 1


def test_who_never_confirmed_is_named_though_the_owner_was_reached():
    announced = announce(Team(roster_of(PEOPLE), ON_I1), Sns(LEAD, GRACE, pending=[ADA]), "i-1")

    assert ids(announced.notified) == ["i-1"]
    assert announced.unreached == {"ada": "ada@example.com has not confirmed its subscription to the topic"}


def test_a_grace_period_does_not_begin_while_no_recipient_listens():
    team = Team(roster_of({"ada": ADA}, (OPS,)), ON_I1)

    announced = announce(team, Sns(pending=[ADA, OPS]), "i-1")

    assert announced.notified == []
    assert announced.problems == ["owner vision not notified of i-1: nobody is subscribed"]
    assert list(announced.unreached) == ["ada", "the operators"]


def test_operators_who_hear_nothing_are_an_alert_though_a_user_was_reached():
    refused = ClientError({"Error": {"Code": "AuthorizationError", "Message": "no"}}, "Publish")
    silent = Sns(OPS)
    silent.publish = Mock(side_effect=refused, __name__="publish")
    team = Team(roster_of(PEOPLE, (OPS,), SENDER), ON_I1)

    announced = [announce(team, sns, "i-1") for sns in (Sns(pending=[OPS]), silent)]

    assert [(ids(each.notified), list(each.unreached)) for each in announced] == [
        (["i-1"], ["the operators"])
    ] * 2
    assert "AuthorizationError" in announced[1].unreached["the operators"]


def test_a_user_reached_on_one_instance_begins_no_grace_period_of_another():
    team = Team(roster_of({"ada": ADA}, sender=SENDER), ON_I1)

    announced = announce(team, Sns(), "i-1", "i-2")

    assert ids(announced.notified) == ["i-1"]
    assert announced.problems == ["owner vision not notified of i-2: nobody is subscribed"]


def test_a_login_name_without_an_address_is_reported_to_the_operators_and_fails_nothing():
    sns = Sns("Ops@example.com")

    announced = announce(Team(roster_of({}, (OPS,)), {"i-1": ["stranger:login"]}), sns, "i-1")

    assert (ids(announced.notified), announced.problems) == (["i-1"], [])
    assert announced.unreached == {"stranger": "has no address in notify.users"}
    assert "Could not be notified:\n- stranger: has no address in notify.users" in sns.messages[0]


def test_a_mail_that_is_refused_leaves_the_others_and_is_named():
    team = Team(roster_of(PEOPLE, sender=SENDER), {"i-1": ["ada:login", "grace:login"]}, (ADA,))

    announced = announce(team, Sns(), "i-1")

    assert [address for address, _ in team.mails] == [GRACE, LEAD]
    assert announced.unreached == {"ada": "SendEmail: MessageRejected: ada@example.com"}


def test_where_time_runs_out_the_others_are_left_to_the_next_sweep():
    team = Team(roster_of({"ada": "ada@x", "grace": "g@x"}, sender=SENDER), ON_I1 | {"i-2": ["grace:login"]})

    def mail(*words):
        if team.mails:
            raise DeadlineError("no time left for send_email")
        team.reach().mail(*words)

    announced = announce(team, Sns(), "i-1", "i-2", deadline=NOW, mail=mail)

    assert ids(announced.notified) == ["i-1"]
    assert announced.problems == ["owner vision not notified of i-2: no time left for publish"]


def test_rooms_hear_one_message_a_sweep_and_one_without_it_is_named_without_its_address():
    team = Team(roster_of({}, webhooks=ROOMS), refuses=("team-b",))

    def secret(name):
        if name == "team-c":
            raise CloudError("GetSecretValue: AccessDenied")
        return f"https://{name}.example.com/x"

    announced = announce(team, Sns(), "i-1", "i-2", secret=secret)

    assert [address for address, _ in team.posts] == [secret("team-a"), secret("team-b")]
    assert announced.unreached == {
        "slack webhook 'team-b'": "HTTP 404",
        "slack webhook 'team-c'": "GetSecretValue: AccessDenied",
    }
    assert ids(announced.notified) == ["i-1", "i-2"]


LONG_WORDS = " ".join(f"{'x' * 24}{number}:launch+login+process" for number in range(8))[:LONGEST].split()


@pytest.mark.parametrize(("words", "least"), [([], 13), (LONG_WORDS, 1)], ids=["plain", "the longest lines"])
def test_a_room_is_no_word_for_instances_that_its_message_does_not_name(words, least):
    many = {f"i-{number:018d}": words for number in range(130)}
    team = Team(roster_of({}, webhooks=ROOMS[:1]), many)

    announced = announce(team, Sns(), *many)

    ((_, message),) = team.posts
    assert ids(announced.notified) == [instance for instance in many if instance in message]
    assert least <= len(announced.notified) < 130
    assert len(message) < LONGEST_TEXT


def test_what_an_instance_says_of_its_users_forges_no_line_and_floods_no_mail():
    words = ["ada\n- i-9 is kept:login", "<!channel>:login", "x" * 65 + ":login"]
    words += [f"u{number}:login" for number in range(20)]
    team = Team(roster_of(PEOPLE, sender=SENDER), {"i-1": words})

    announced = announce(team, Sns(), "i-1")

    assert set(announced.unreached) <= {f"u{number}" for number in range(8)}
    assert not any(forged in team.mails[0][1] for forged in ("i-9", "<!", "xxx"))


def test_a_roster_that_cannot_be_read_begins_no_grace_period():
    refused = Mock(side_effect=CloudError("GetObject: AccessDenied"))

    announced = announce(Team(roster_of()), Sns(), "i-1", roster=refused)

    assert (announced.notified, announced.problems) == ([], ["nobody notified: GetObject: AccessDenied"])


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"users": {}, "operators": [], "sender": None, "webhooks": [{"kind": "irc", "secret": "x"}]},
        {"users": 7, "operators": [], "sender": None, "webhooks": []},
    ],
)
def test_a_roster_that_no_stack_writes_is_refused(content):
    with pytest.raises(CloudError, match=r"roster\.json cannot be read"):
        roster_in(Mock(newest=lambda _: Mock(content=content)))


def test_an_owner_whose_name_fits_no_subject_is_notified_all_the_same():
    instances = [owned(name) for name in ("ada\nlovelace", "tab\there", "ü" * 256, "x" * 256, "\x7f")]

    announced = [notifier().announce("aws-dev", [instance]) for instance in instances]

    assert [(each.notified, each.problems) for each in announced] == [([each], []) for each in instances]


ALERT = Decision(make_instance(), Verdict.KEEP_UNKNOWN, "a sensor failed", alert=True)


def test_an_instance_that_is_unknown_every_other_sweep_is_reported_once_a_day_and_then_forgotten():
    memory, mails = {}, 0

    for number in range(144):
        decisions = [replace(ALERT, alert=bool(number % 2))]
        due, memory = due_alerts(decisions, memory, NOW + number * timedelta(minutes=10))
        mails += bool(due)

    _, later = due_alerts([], memory, NOW + timedelta(days=1, minutes=10))
    assert (mails, len(memory), later) == (1, 1, {})


def test_a_subject_says_whose_instances_and_a_message_how_to_name_each():
    sns = Sns(OPS)
    team = Team(roster_of(operators=(OPS,), webhooks=ROOMS[:1]))

    announce(team, sns, "i-1")
    announce(team, sns, "i-1", "i-2")

    assert sns.subjects == [
        "aws-dev: 1 idle GPU instance(s) of vision will be stopped or terminated",
        "aws-dev: 2 idle GPU instance(s) of vision will be stopped or terminated",
    ]
    assert ["each by its own id" in message for message in sns.messages] == [False, True]


def mails_of_marking(team, notified_at):
    """Return the number of mails after one more mark of the same idle instance."""
    tools = Tools(Mock(), notifier(reach=team.reach()), None, POLICY, lambda: NOW)
    hour, before = timedelta(hours=1), len(team.mails)
    found = Decision(make_instance("i-1"), Verdict.MARK, "idle", idle_since=NOW - hour, reap_after=NOW + hour)
    mark(tools, Plan((found,)), NOW, notified_at, Done())
    return len(team.mails) - before


def test_who_came_to_an_instance_after_its_notice_has_one_too():
    team, notified_at = Team(roster_of(PEOPLE, sender=SENDER), {"i-1": ["ada:login"]}), {}
    mails = [mails_of_marking(team, notified_at), mails_of_marking(team, notified_at)]

    team.users["i-1"] = ["grace:process", "ada:login"]

    assert [*mails, mails_of_marking(team, notified_at), mails_of_marking(team, notified_at)] == [1, 0, 2, 0]


def test_who_floods_the_records_is_named():
    for caller, who in {"AROAMADEUP:i-1": "AROAMADEUP:i-1", "*": "all instances together"}.items():
        text = flooding_text(caller, 201)

        assert text.startswith(f"- {who}: wrote more names ")
        assert "(201 or more)" in text
