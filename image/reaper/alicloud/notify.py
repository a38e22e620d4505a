"""Telling people on Alibaba Cloud: a line in the sweep's log, and a number that an alarm watches.

CloudMonitor mails its contacts when an alarm fires, and carries no text of ours. Which machines are meant is
told by the log, by ``gpu-fleet status``, and by the machine itself on every terminal.
"""

import json
import sys

from image.reaper.alicloud.metrics import DIMENSION_STACK, datum
from image.reaper.alicloud.session import Product
from image.reaper.calls import Calls

METRIC_NOTICES = "SweepNotices"


class Alarm:
    """The stack's alarm on ``SweepNotices``.

    Args:
        cms: the client.
        calls: makes the calls.
        stack: whose.
    """

    def __init__(self, cms: Product, calls: Calls, stack: str) -> None:
        self._cms = cms
        self._calls = calls
        self._stack = stack

    def tell(self, subject: str, message: str) -> None:
        """Tell one message; raises CloudError when the alarm cannot hear of it."""
        data = [datum(METRIC_NOTICES, 1, {DIMENSION_STACK: self._stack})]
        self._calls.change(self._cms.action("PutCustomMetric"), MetricList=data)
        line = {"event": "notice", "subject": subject, "message": message}
        sys.stdout.write(json.dumps(line) + "\n")
