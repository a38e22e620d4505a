"""Notices on Alibaba Cloud: an alarm for operators, DirectMail for users.

CloudMonitor mails its contacts when an alarm fires, without any text of ours. The log, ``gpu-fleet status``,
mail to users, and each terminal of the instance name the instances.
"""

import json
import sys
from collections.abc import Mapping, Sequence

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.providers.alicloud.metrics import DIMENSION_STACK, datum
from gpu_fleet_image.providers.alicloud.session import Product

_METRIC_NOTICES = "SweepNotices"
SUBJECT_LENGTH = 100  # SingleSendMail; its newer page says 256
MESSAGE_BYTES = 80_000  # TextBody, SingleSendMail


class NoticesAlarm:
    """Channel of operators: the stack's alarm on ``SweepNotices``."""

    def __init__(self, cms: Product, calls: Calls, stack: str) -> None:
        self._cms = cms
        self._calls = calls
        self._stack = stack

    def send(self, subject: str, message: str, users: Sequence[str] = ()) -> None:
        """Send one message; raises CloudError if the alarm's metric is refused.

        Users do not subscribe here.
        """
        del users
        data = [datum(_METRIC_NOTICES, 1, {DIMENSION_STACK: self._stack})]
        self._calls.change(self._cms.action("PutCustomMetric"), MetricList=data)
        line = {"event": "notice", "subject": subject, "message": message}
        sys.stdout.write(json.dumps(line) + "\n")

    def deaf(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """Return nothing: operators see their contacts' confirmations in CloudMonitor's console."""
        del addresses
        return {}


class Mail:
    """Sender of mail through DirectMail."""

    def __init__(self, dm: Product, calls: Calls) -> None:
        self._dm = dm
        self._calls = calls

    def send(self, sender: str, address: str, subject: str, message: str) -> None:
        """Send one mail from a sender address of the console; raises CloudError if it is refused.

        https://www.alibabacloud.com/help/en/direct-mail/api-dm-2015-11-23-singlesendmail
        """
        self._calls.change(
            self._dm.action("SingleSendMail"),
            AccountName=sender,
            AddressType=1,
            ReplyToAddress=False,
            ToAddress=address,
            Subject=subject[:SUBJECT_LENGTH],
            TextBody=message.encode()[:MESSAGE_BYTES].decode(errors="ignore"),
        )
