"""What the identity, log, alarm, message and budget creators leave in moto, read with boto3."""

import json

from tests.stacks.rehearsal.examples import READ_ONLY, TAGS, TRUST, as_map


def test_a_role_trusts_whom_it_should_and_has_its_policies(clients, create):
    managed, _ = create("aws:iam/policy:Policy", policy=READ_ONLY)

    name, outputs = create(
        "aws:iam/role:Role",
        assumeRolePolicy=TRUST,
        description="instances",
        inlinePolicies=[{"name": "read", "policy": READ_ONLY}],
        managedPolicyArns=[managed],
        tags=TAGS,
    )

    iam = clients("iam")
    seen = iam.get_role(RoleName=name)["Role"]
    assert (seen["Arn"], seen["AssumeRolePolicyDocument"]) == (outputs["arn"], json.loads(TRUST))
    assert as_map(seen["Tags"]) == TAGS
    assert iam.list_role_policies(RoleName=name)["PolicyNames"] == ["read"]
    attached = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
    assert [policy["PolicyArn"] for policy in attached] == [managed]


def test_a_service_linked_role_is_named_by_its_service_and_suffix(clients, create):
    arn, outputs = create(
        "aws:iam/serviceLinkedRole:ServiceLinkedRole",
        awsServiceName="autoscaling.amazonaws.com",
        customSuffix="mine",
        tags=TAGS,
    )

    assert outputs["name"] == "AWSServiceRoleForAutoScaling_mine"
    assert clients("iam").get_role(RoleName=outputs["name"])["Role"]["Arn"] == arn


def test_a_role_policy_says_what_the_role_may_do(clients, create, role):
    made, outputs = create("aws:iam/rolePolicy:RolePolicy", role=role["name"], policy=READ_ONLY)

    seen = clients("iam").get_role_policy(RoleName=role["name"], PolicyName=outputs["name"])
    assert seen["PolicyDocument"] == json.loads(READ_ONLY)
    assert made == f"{role['name']}:{outputs['name']}"


def test_a_policy_can_be_attached_to_a_role(clients, create, role):
    arn, _ = create("aws:iam/policy:Policy", policy=READ_ONLY, tags=TAGS)

    create("aws:iam/rolePolicyAttachment:RolePolicyAttachment", role=role["name"], policyArn=arn)

    seen = clients("iam").list_attached_role_policies(RoleName=role["name"])["AttachedPolicies"]
    assert [policy["PolicyArn"] for policy in seen] == [arn]


def test_an_instance_profile_holds_its_role(clients, create, role):
    name, _ = create("aws:iam/instanceProfile:InstanceProfile", role=role["name"], tags=TAGS)

    seen = clients("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    assert [each_role["RoleName"] for each_role in seen["Roles"]] == [role["name"]]


def test_a_log_group_is_encrypted_and_forgets(clients, create):
    _, key = create("aws:kms/key:Key", description="logs")

    _, outputs = create(
        "aws:cloudwatch/logGroup:LogGroup", name="/mine", kmsKeyId=key["arn"], retentionInDays=365, tags=TAGS
    )

    seen = clients("logs").describe_log_groups(logGroupNamePrefix="/mine")["logGroups"][0]
    assert (seen["kmsKeyId"], seen["retentionInDays"]) == (key["arn"], 365)
    assert outputs["arn"] == seen["arn"].removesuffix(":*")


def test_an_alarm_watches_its_metric(clients, create):
    name, outputs = create(
        "aws:cloudwatch/metricAlarm:MetricAlarm",
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

    seen = clients("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"][0]
    assert seen["Dimensions"] == [{"Name": "AutoScalingGroupName", "Value": "dev"}]
    assert (seen["Threshold"], seen["Period"], seen["AlarmArn"]) == (80, 60, outputs["arn"])


def test_an_alarm_may_watch_an_expression(clients, create):
    metric = {"namespace": "Own", "metricName": "Idle", "period": 60, "stat": "Sum", "dimensions": {"a": "b"}}

    name, _ = create(
        "aws:cloudwatch/metricAlarm:MetricAlarm",
        comparisonOperator="GreaterThanThreshold",
        threshold=1,
        evaluationPeriods=1,
        metricQueries=[
            {"id": "rate", "expression": "idle / 60", "label": "rate", "returnData": True},
            {"id": "idle", "metric": metric},
        ],
    )

    seen = clients("cloudwatch").describe_alarms(AlarmNames=[name])["MetricAlarms"][0]["Metrics"]
    stat = seen[1]["MetricStat"]
    assert seen[0]["Expression"] == "idle / 60"
    assert (stat["Metric"]["MetricName"], stat["Metric"]["Dimensions"]) == (
        "Idle",
        [{"Name": "a", "Value": "b"}],
    )


def test_a_topic_is_encrypted_and_has_its_policy(clients, create):
    _, key = create("aws:kms/key:Key", description="topics")
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})

    arn, _ = create("aws:sns/topic:Topic", displayName="alarms", kmsMasterKeyId=key["arn"], tags=TAGS)
    create("aws:sns/topicPolicy:TopicPolicy", arn=arn, policy=policy)

    seen = clients("sns").get_topic_attributes(TopicArn=arn)["Attributes"]
    assert (seen["KmsMasterKeyId"], seen["DisplayName"]) == (key["arn"], "alarms")
    assert json.loads(seen["Policy"]) == json.loads(policy)


def test_an_address_subscribes_to_a_topic_and_must_confirm(clients, create):
    topic, _ = create("aws:sns/topic:Topic")

    _, outputs = create(
        "aws:sns/topicSubscription:TopicSubscription",
        topic=topic,
        protocol="email",
        endpoint="team@example.com",
    )

    seen = clients("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert [(entry["Protocol"], entry["Endpoint"]) for entry in seen] == [("email", "team@example.com")]
    assert outputs["pendingConfirmation"] is True


def test_a_queue_is_encrypted_and_has_its_policy(clients, create):
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "sqs:*"}]})

    url, outputs = create(
        "aws:sqs/queue:Queue",
        name="failed",
        messageRetentionSeconds=1_209_600,
        kmsMasterKeyId="alias/mine",
        tags=TAGS,
    )
    create("aws:sqs/queuePolicy:QueuePolicy", queueUrl=url, policy=policy)

    seen = clients("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (seen["QueueArn"], seen["MessageRetentionPeriod"]) == (outputs["arn"], "1209600")
    assert (seen["KmsMasterKeyId"], json.loads(seen["Policy"])) == ("alias/mine", json.loads(policy))


def test_a_budget_has_its_limit_and_notifications(clients, create):
    create(
        "aws:budgets/budget:Budget",
        name="monthly",
        accountId="123456789012",
        budgetType="COST",
        timeUnit="MONTHLY",
        limitAmount="5000",
        limitUnit="USD",
        costFilters=[{"name": "TagKeyValue", "values": ["user:gpu-fleet:stack$test"]}],
        notifications=[
            {
                "comparisonOperator": "GREATER_THAN",
                "notificationType": "ACTUAL",
                "threshold": 80,
                "thresholdType": "PERCENTAGE",
                "subscriberEmailAddresses": ["team@example.com"],
                "subscriberSnsTopicArns": ["arn:aws:sns:us-east-1:123456789012:alarms"],
            }
        ],
    )

    named = {"AccountId": "123456789012", "BudgetName": "monthly"}
    budget = clients("budgets").describe_budget(**named)["Budget"]
    notifications = clients("budgets").describe_notifications_for_budget(**named)["Notifications"]
    assert float(budget["BudgetLimit"]["Amount"]) == 5000
    assert budget["CostFilters"] == {"TagKeyValue": ["user:gpu-fleet:stack$test"]}
    assert [
        (notification["NotificationType"], notification["Threshold"]) for notification in notifications
    ] == [("ACTUAL", 80)]
