"""Who is told what: in words that every channel takes, and not the same every ten minutes."""

from datetime import timedelta

import pytest

from image.reaper.aws.connect import Topic
from image.reaper.calls import Calls
from image.reaper.model import Decision, Verdict
from image.reaper.sweep.notify import Notifier, due_alerts
from tests.reaper.situations import NOW, machine

SWEEPS_A_DAY = 144


class Sns:
    """Takes only what SNS takes: Publish, Subject."""

    def __init__(self):
        self.subjects = []

    def publish(self, TopicArn, Subject, Message):  # noqa: N803 - boto3's names
        assert Subject.isascii()
        assert Subject.isprintable()
        assert len(Subject) < 100
        self.subjects.append(Subject)
        return {}


@pytest.mark.parametrize("owner", ["ada\nlovelace", "tab\there", "ü" * 256, "x" * 256, "\x7f"])
def test_an_owner_whose_name_fits_no_subject_is_told_all_the_same(owner):
    sns = Sns()
    topic = Topic(sns, Calls(lambda: NOW), "arn:aws:sns:::alarms")
    one = Decision(machine(tags={"gpu-fleet:owner": owner}), Verdict.MARK, "idle")

    told, problems = Notifier(topic).announce("aws-dev", [one])

    assert (told, problems) == ([one], [])


def test_a_machine_that_is_unknown_every_other_sweep_is_told_once_a_day():
    alert = Decision(machine(), Verdict.KEEP_UNKNOWN, "a sensor failed", alert=True)
    fine = Decision(machine(), Verdict.KEEP_BUSY, "busy")
    memory, mails = {}, 0

    for number in range(SWEEPS_A_DAY):
        decisions = [alert if number % 2 else fine]
        due, memory = due_alerts(decisions, memory, NOW + number * timedelta(minutes=10))
        mails += bool(due)

    assert mails == 1


def test_what_was_told_is_forgotten_once_it_may_be_told_again():
    alert = Decision(machine(), Verdict.KEEP_UNKNOWN, "a sensor failed", alert=True)
    _, memory = due_alerts([alert], {}, NOW)

    _, later = due_alerts([], memory, NOW + timedelta(days=1))

    assert (len(memory), later) == (1, {})
