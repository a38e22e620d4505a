"""Notices on AWS: the stack's SNS topic, and mail through SES."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_fleet_image.core.calls import Calls

SUBJECT_LENGTH = 99  # Publish, SNS API: less than 100, and neither line breaks nor control characters
MESSAGE_BYTES = 200_000  # of at most 262,144
# Attribute that the filter policies of users' subscriptions read.
USER = "user"
_NOT_CONFIRMED = "{address} has not confirmed its subscription to the topic"
_NOT_SUBSCRIBED = "{address} has no subscription to the topic"


class Topic:
    """Channel of owners and operators: the stack's topic."""

    def __init__(self, sns: Any, calls: Calls, topic_arn: str) -> None:
        self._sns = sns
        self._calls = calls
        self._topic_arn = topic_arn

    def send(self, subject: str, message: str, users: Sequence[str] = ()) -> None:
        """Publish one message, for some users too; raises CloudError if it was not accepted."""
        named = {"DataType": "String.Array", "StringValue": json.dumps(list(users))}
        self._calls.change(
            self._sns.publish,
            TopicArn=self._topic_arn,
            Subject=_subject(subject),
            Message=_body(message),
            **({"MessageAttributes": {USER: named}} if users else {}),
        )

    def deaf(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """Return those of the addresses that get no mail from the topic, with the reason; raises CloudError.

        It takes one call for each hundred subscriptions. An unconfirmed subscription has no ARN (API
        ListSubscriptionsByTopic).
        """
        subscribed, page = dict[str, bool](), dict[str, str]()
        while True:
            answer = self._calls.read(self._sns.list_subscriptions_by_topic, TopicArn=self._topic_arn, **page)
            for subscription in answer["Subscriptions"]:
                address = subscription["Endpoint"].casefold()
                confirmed = subscription["SubscriptionArn"].startswith("arn:")
                subscribed[address] = subscribed.get(address, False) or confirmed
            if not answer.get("NextToken"):
                break
            page = {"NextToken": answer["NextToken"]}
        return {
            address: (_NOT_CONFIRMED if address.casefold() in subscribed else _NOT_SUBSCRIBED).format(
                address=address
            )
            for address in addresses
            if not subscribed.get(address.casefold())
        }


class Mail:
    """Sender of mail through SES."""

    def __init__(self, ses: Any, calls: Calls) -> None:
        self._ses = ses
        self._calls = calls

    def send(self, sender: str, address: str, subject: str, message: str) -> None:
        """Send one mail; raises CloudError if SES refuses, say an identity that was not verified."""
        text = {"Text": {"Data": _body(message), "Charset": "UTF-8"}}
        self._calls.change(
            self._ses.send_email,
            FromEmailAddress=sender,
            Destination={"ToAddresses": [address]},
            Content={"Simple": {"Subject": {"Data": _subject(subject)}, "Body": text}},
        )


def _subject(text: str) -> str:
    return "".join(
        character if character.isascii() and character.isprintable() else "?" for character in text
    )[:SUBJECT_LENGTH]


def _body(text: str) -> str:
    return text.encode()[:MESSAGE_BYTES].decode(errors="ignore")
