"""The SNS topic that owners and operators listen to."""

from typing import Any

from image.reaper.calls import Calls

SUBJECT_LENGTH = 99  # Publish, SNS API: less than 100, and neither line breaks nor control characters
MESSAGE_BYTES = 200_000  # of at most 262,144


class Topic:
    """The stack's topic.

    Args:
        sns: the client.
        calls: makes the calls.
        topic_arn: where owners and operators listen.
    """

    def __init__(self, sns: Any, calls: Calls, topic_arn: str) -> None:
        self._sns = sns
        self._calls = calls
        self._topic_arn = topic_arn

    def tell(self, subject: str, message: str) -> None:
        """Publish one message; raises CloudError when nobody heard it."""
        plain = "".join(one if one.isascii() and one.isprintable() else "?" for one in subject)
        self._calls.change(
            self._sns.publish,
            TopicArn=self._topic_arn,
            Subject=plain[:SUBJECT_LENGTH],
            Message=message.encode()[:MESSAGE_BYTES].decode(errors="ignore"),
        )
