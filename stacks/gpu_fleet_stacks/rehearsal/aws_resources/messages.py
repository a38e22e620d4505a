"""Topics and queues in moto: SNS and SQS."""

import json
from typing import Any

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)

_TOPIC = api_names("displayName kmsMasterKeyId policy deliveryPolicy signatureVersion tracingConfig")
_FILTER = {"FilterPolicy": "filterPolicy", "FilterPolicyScope": "filterPolicyScope"}
_QUEUE = api_names(
    "delaySeconds kmsDataKeyReusePeriodSeconds kmsMasterKeyId policy redrivePolicy "
    "redriveAllowPolicy sqsManagedSseEnabled",
    MaximumMessageSize="maxMessageSize",
    MessageRetentionPeriod="messageRetentionSeconds",
    ReceiveMessageWaitTimeSeconds="receiveWaitTimeSeconds",
    VisibilityTimeout="visibilityTimeoutSeconds",
)


def topic(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    topic_name = physical_name(name, inputs)
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    made = clients("sns").create_topic(Name=topic_name, Attributes=_texts(picked(inputs, _TOPIC)), **tags)
    arn = made["TopicArn"]
    return arn, with_tags_all(inputs, name=topic_name, arn=arn, owner=clients.account_id)


def topic_policy(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    arn = inputs["arn"]
    clients("sns").set_topic_attributes(TopicArn=arn, AttributeName="Policy", AttributeValue=inputs["policy"])
    return arn, {**inputs, "owner": clients.account_id}


def topic_subscription(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Create an aws:sns/topicSubscription:TopicSubscription; moto never sends the request to confirm."""
    names = {"TopicArn": "topic", "Protocol": "protocol", "Endpoint": "endpoint"}
    filters = _texts(picked(inputs, _FILTER))
    made = clients("sns").subscribe(
        ReturnSubscriptionArn=True,
        **picked(inputs, names),
        **({"Attributes": filters} if filters else {}),
    )
    arn = made["SubscriptionArn"]
    by_mail = inputs["protocol"].startswith("email")
    computed = {"arn": arn, "ownerId": clients.account_id, "pendingConfirmation": by_mail}
    return arn, {**inputs, **computed, "confirmationWasAuthenticated": not by_mail}


def queue(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    queue_name = physical_name(name, inputs)
    tags = picked(inputs, {"tags": "tags"})
    made = clients("sqs").create_queue(
        QueueName=queue_name, Attributes=_texts(picked(inputs, _QUEUE)), **tags
    )
    url = made["QueueUrl"]
    return url, with_tags_all(inputs, name=queue_name, url=url, arn=clients.arn("sqs", queue_name))


def queue_policy(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    url = inputs["queueUrl"]
    clients("sqs").set_queue_attributes(QueueUrl=url, Attributes={"Policy": inputs["policy"]})
    return url, inputs


def _texts(attributes: dict[str, Any]) -> dict[str, str]:
    """Return every attribute as text, as both services require."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in attributes.items()}


CREATORS = {
    "aws:sns/topic:Topic": topic,
    "aws:sns/topicPolicy:TopicPolicy": topic_policy,
    "aws:sns/topicSubscription:TopicSubscription": topic_subscription,
    "aws:sqs/queue:Queue": queue,
    "aws:sqs/queuePolicy:QueuePolicy": queue_policy,
}
