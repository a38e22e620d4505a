"""What a close look believes of an agent's word."""

from datetime import timedelta

import pytest

from image.reaper.metrics import METRIC_ACKNOWLEDGED
from image.reaper.sweep.heartbeats import COMPLETE, Answer
from image.reaper.sweep.observe import look_closely
from tests.reaper.situations import NOW, idle_history, machine
from tests.reaper.sweeping import policy

CAREFUL = policy(require_acknowledgement=True, idle_after_hours=2)


class Heartbeats:
    """An agent that acknowledged a mark once, some time ago."""

    def __init__(self, ago):
        self.at = NOW - ago

    def read(self, queries, span):
        points = {METRIC_ACKNOWLEDGED: [(self.at, 1.0)]}
        return {query: Answer(list(points.get(query.metric, [])), COMPLETE) for query in queries}, []


@pytest.mark.parametrize(("minutes", "believed"), [(1, 1.0), (4, 1.0), (5, None), (30, None)])
def test_only_an_acknowledgement_of_now_counts(minutes, believed):
    """An agent that acknowledges no longer could not save what was kept since."""
    one = machine()
    known = {one.id: idle_history(161).activity()}

    found, _ = look_closely(Heartbeats(timedelta(minutes=minutes)), [one], known, CAREFUL, NOW)

    assert found[one.id].acknowledged == believed
