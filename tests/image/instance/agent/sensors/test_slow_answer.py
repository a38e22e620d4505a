"""Slow questions delay no poll, and no poll uses an answer that is too old."""

import threading

import pytest

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent.sensors import slow_answer
from gpu_fleet_image.instance.agent.sensors.poll import SensorOptions, Sensors
from gpu_fleet_image.instance.agent.sensors.processes import ProcessTable
from gpu_fleet_image.instance.agent.sensors.reading import Presence, Rates
from gpu_fleet_image.instance.agent.sensors.slow_answer import LOOK_S, SlowAnswer
from tests.image.samples import NOON, reads


class Question:
    """Question with the answers 1, 2, 3, ..., each once it is allowed and after some seconds of its clock."""

    def __init__(self):
        self.asked, self.clock, self.takes_s = 0, 0.0, 0.0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self):
        self.asked += 1
        number = self.asked
        assert self.may_answer.wait(60)
        self.clock += self.takes_s
        return number

    def may_answer_soon(self):
        threading.Timer(0.05, self.may_answer.set).start()


@pytest.fixture
def question(monkeypatch):
    monkeypatch.setattr(slow_answer, "PATIENCE_S", 0.01)
    made = Question()
    yield made
    made.may_answer.set()


@pytest.fixture
def slow(question):
    return SlowAnswer(lambda: question.clock)


def test_what_answers_or_fails_at_once_is_asked_each_time(slow, question, monkeypatch):
    monkeypatch.setattr(slow_answer, "PATIENCE_S", 60)

    def fail():
        raise SensorError("exit code 3")

    with pytest.raises(SensorError, match="exit code 3"):
        slow.get(fail)
    assert [slow.get(question) for _ in range(3)] == [1, 2, 3]


def test_what_takes_long_is_not_waited_for_while_the_answer_before_is_young(slow, question):
    question.takes_s = 8.0
    slow.get(question)
    question.may_answer.clear()
    question.clock = 8.0 + 8.0 + LOOK_S  # it was asked at 0

    assert [slow.get(question), slow.get(question)] == [1, 1]
    question.may_answer.set()
    slow._asking.join()
    assert question.asked == 2  # one at a time


@pytest.mark.parametrize(
    ("takes_s", "later_s", "key"),
    [(0.6, 0.7 + LOOK_S, None), (8.0, 8.1 + LOOK_S, None), (20.0, 5.1, None), (0.0, 0.0, "another question")],
)
def test_an_answer_that_is_too_old_or_to_another_question_is_none(slow, question, takes_s, later_s, key):
    question.takes_s = takes_s
    slow.get(question)
    question.may_answer.clear()
    question.clock += later_s
    question.may_answer_soon()

    assert slow.get(question, key=key) == 2


def test_what_was_asked_at_an_old_look_and_answered_since_is_asked_anew(slow, question):
    question.takes_s = 0.6
    slow.get(question)
    question.may_answer.clear()
    slow.get(question)
    waiting = slow._asking
    question.may_answer.set()
    waiting.join()
    question.clock += 10.0

    assert slow.get(question) == 3


def test_another_question_is_not_answered_by_what_was_asked_before_it(slow, question):
    slow.get(question)
    question.may_answer.clear()
    slow.get(question)  # is asked, and the answer before is young
    question.may_answer_soon()

    assert slow.get(question, key="another") == 3


def test_a_look_sees_what_began_while_the_command_ran():
    presence = reads(Presence())

    class Command:
        command = ("/usr/local/bin/is-busy",)

        def is_busy(self):
            presence.read.return_value = Presence(watched=("torchrun (7)",))
            return False

    sensors = Sensors(reads(Rates()), reads(()), presence, lambda: SensorOptions(command=Command()))

    assert sensors.poll(NOON).presence.watched == ("torchrun (7)",)


def test_a_look_sees_what_began_while_a_notebooks_server_was_asked(monkeypatch):
    tables, clock = [["idle"], ["idle", "began"]], [0.0]

    def ask(*_kernels):
        clock[0] += 4.0
        return [], []

    table = ProcessTable(frozenset, lambda: clock[0], ask)
    monkeypatch.setattr(table, "_table", lambda: tables.pop(0) and {})

    table.read()

    assert tables == []
