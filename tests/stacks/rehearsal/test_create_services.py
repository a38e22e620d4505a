"""What the identity, log, alarm, message and budget creators leave in moto, read with boto3."""

import json

from tests.stacks.rehearsal.examples import READ_ONLY, TAGS, TRUST, as_map

DENIES = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "sqs:*"}]})


def test_a_role_trusts_whom_it_should_and_has_its_policies(clients, create):
    managed, _ = create("iam/policy", policy=READ_ONLY, tags=TAGS)
    attached, _ = create("iam/policy", policy=READ_ONLY, name="attached")
    policies = {"inlinePolicies": [{"name": "read", "policy": READ_ONLY}], "managedPolicyArns": [managed]}

    name, outputs = create("iam/role", assumeRolePolicy=TRUST, description="ours", tags=TAGS, **policies)
    create("iam/rolePolicyAttachment", role=name, policyArn=attached)

    iam = clients("iam")
    role = iam.get_role(RoleName=name)["Role"]
    assert (role["Arn"], role["AssumeRolePolicyDocument"]) == (outputs["arn"], json.loads(TRUST))
    assert as_map(role["Tags"]) == TAGS
    assert iam.list_role_policies(RoleName=name)["PolicyNames"] == ["read"]
    listed = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
    assert {policy["PolicyArn"] for policy in listed} == {managed, attached}


def test_a_service_linked_role_is_named_by_its_service_and_suffix(clients, create):
    service = {"awsServiceName": "autoscaling.amazonaws.com", "customSuffix": "mine"}

    arn, outputs = create("iam/serviceLinkedRole", tags=TAGS, **service)

    assert outputs["name"] == "AWSServiceRoleForAutoScaling_mine"
    assert clients("iam").get_role(RoleName=outputs["name"])["Role"]["Arn"] == arn


def test_a_role_policy_says_what_the_role_may_do(clients, create, role):
    made, outputs = create("iam/rolePolicy", role=role["name"], policy=READ_ONLY)

    policy = clients("iam").get_role_policy(RoleName=role["name"], PolicyName=outputs["name"])
    assert policy["PolicyDocument"] == json.loads(READ_ONLY)
    assert made == f"{role['name']}:{outputs['name']}"


def test_an_instance_profile_holds_its_role(clients, create, role):
    name, _ = create("iam/instanceProfile", role=role["name"], tags=TAGS)

    profile = clients("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [each_role["RoleName"] for each_role in profile["Roles"]] == [role["name"]]


def test_a_log_group_is_encrypted_and_forgets(create, seen):
    _, key = create("kms/key", description="logs")
    kept = {"kmsKeyId": key["arn"], "retentionInDays": 365}

    _, outputs = create("cloudwatch/logGroup", name="/mine", tags=TAGS, **kept)

    group = seen("logs", "describe_log_groups", logGroupNamePrefix="/mine")
    assert group.items() >= kept.items()
    assert outputs["arn"] == group["arn"].removesuffix(":*")


def test_an_alarm_watches_its_metric(create, seen):
    name, outputs = create(
        "cloudwatch/metricAlarm",
        name="cpu-high",
        namespace="AWS/EC2",
        metricName="CPUUtilization",
        dimensions={"AutoScalingGroupName": "dev"},
        statistic="Average",
        comparisonOperator="GreaterThanThreshold",
        threshold=80,
        period=60,
        evaluationPeriods=5,
        treatMissingData="notBreaching",
    )

    alarm = seen("cloudwatch", "describe_alarms", AlarmNames=[name])
    assert alarm["Dimensions"] == [{"Name": "AutoScalingGroupName", "Value": "dev"}]
    assert (alarm["Threshold"], alarm["Period"], alarm["AlarmArn"]) == (80, 60, outputs["arn"])


def test_an_alarm_may_watch_an_expression(create, seen):
    metric = {"namespace": "Own", "metricName": "Idle", "period": 60, "stat": "Sum", "dimensions": {"a": "b"}}
    rate = {"id": "rate", "expression": "idle / 60", "label": "rate", "returnData": True}
    limit = {"comparisonOperator": "GreaterThanThreshold", "threshold": 1, "evaluationPeriods": 1}

    name, _ = create(
        "cloudwatch/metricAlarm", metricQueries=[rate, {"id": "idle", "metric": metric}], **limit
    )

    shown, of_metric = seen("cloudwatch", "describe_alarms", AlarmNames=[name])["Metrics"]
    watched = of_metric["MetricStat"]["Metric"]
    assert shown["Expression"] == "idle / 60"
    assert (watched["MetricName"], watched["Dimensions"]) == ("Idle", [{"Name": "a", "Value": "b"}])


def test_a_topic_is_encrypted_and_has_its_policy(clients, create):
    _, key = create("kms/key", description="topics")

    arn, _ = create("sns/topic", displayName="alarms", kmsMasterKeyId=key["arn"], tags=TAGS)
    create("sns/topicPolicy", arn=arn, policy=DENIES)

    topic = clients("sns").get_topic_attributes(TopicArn=arn)["Attributes"]
    assert (topic["KmsMasterKeyId"], topic["DisplayName"]) == (key["arn"], "alarms")
    assert json.loads(topic["Policy"]) == json.loads(DENIES)


def test_an_address_subscribes_to_a_topic_and_must_confirm(create, seen):
    topic, _ = create("sns/topic")

    _, outputs = create("sns/topicSubscription", topic=topic, protocol="email", endpoint="team@example.com")

    entry = seen("sns", "list_subscriptions_by_topic", TopicArn=topic)
    assert (entry["Protocol"], entry["Endpoint"]) == ("email", "team@example.com")
    assert outputs["pendingConfirmation"] is True


def test_a_queue_is_encrypted_and_has_its_policy(clients, create):
    own = {"messageRetentionSeconds": 1_209_600, "kmsMasterKeyId": "alias/mine", "tags": TAGS}

    url, outputs = create("sqs/queue", name="failed", **own)
    create("sqs/queuePolicy", queueUrl=url, policy=DENIES)

    queue = clients("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (queue["QueueArn"], queue["MessageRetentionPeriod"]) == (outputs["arn"], "1209600")
    assert (queue["KmsMasterKeyId"], json.loads(queue["Policy"])) == ("alias/mine", json.loads(DENIES))


def test_a_budget_has_its_limit_and_notifications(clients, create):
    actual = {
        "comparisonOperator": "GREATER_THAN",
        "notificationType": "ACTUAL",
        "threshold": 80,
        "thresholdType": "PERCENTAGE",
        "subscriberEmailAddresses": ["team@example.com"],
        "subscriberSnsTopicArns": ["arn:aws:sns:us-east-1:123456789012:alarms"],
    }
    create(
        "budgets/budget",
        name="monthly",
        accountId="123456789012",
        budgetType="COST",
        timeUnit="MONTHLY",
        limitAmount="5000",
        limitUnit="USD",
        costFilters=[{"name": "TagKeyValue", "values": ["user:gpu-fleet:stack$test"]}],
        notifications=[actual],
    )

    named = {"AccountId": "123456789012", "BudgetName": "monthly"}
    budget = clients("budgets").describe_budget(**named)["Budget"]
    (notification,) = clients("budgets").describe_notifications_for_budget(**named)["Notifications"]
    assert float(budget["BudgetLimit"]["Amount"]) == 5000
    assert budget["CostFilters"] == {"TagKeyValue": ["user:gpu-fleet:stack$test"]}
    assert (notification["NotificationType"], notification["Threshold"]) == ("ACTUAL", 80)
