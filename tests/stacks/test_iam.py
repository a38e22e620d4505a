"""The evaluator of IAM policies agrees with the IAM user guide on its own examples."""

import json

import pytest

from tests.stacks.iam import PolicyError, Request, Verdict, decide

ALLOWED, NOT_ALLOWED, DENIED = Verdict.ALLOWED, Verdict.NOT_ALLOWED, Verdict.DENIED
ACCOUNT = "123456789012"
CALLER = f"arn:aws:iam::{ACCOUNT}:role/caller"


def policy(*statements, version="2012-10-17"):
    return json.dumps({"Version": version, "Statement": list(statements)})


def allow(actions="*", resources="*", condition=None, **more):
    statement = {"Effect": "Allow", "Action": actions, "Resource": resources, **more}
    return statement | ({"Condition": condition} if condition else {})


def deny(*arguments, **more):
    return allow(*arguments, **more) | {"Effect": "Deny"}


def verdict(*statements, action="s3:GetObject", resource="arn:aws:s3:::bucket/key", **context):
    context = {key.replace("__", ":"): value for key, value in context.items()}
    return decide(Request(action, resource, CALLER, context), [policy(*statements)])


def holds(condition, context):
    request = Request("s3:GetObject", "arn:aws:s3:::bucket/key", CALLER, context)
    return decide(request, [policy(allow(condition=condition))]) is ALLOWED


# reference_policies_evaluation-logic.html


def test_what_nothing_allows_is_not_allowed():
    assert verdict(allow("s3:PutObject")) is NOT_ALLOWED


def test_a_deny_overrides_every_allow():
    assert verdict(allow(), deny("s3:GetObject")) is DENIED


def test_within_an_account_the_resources_policy_alone_may_allow():
    request = Request("s3:GetObject", "arn:aws:s3:::bucket/key", CALLER)

    assert decide(request, [], [policy(allow(Principal={"AWS": CALLER}))]) is ALLOWED
    assert decide(request, [], [policy(allow(Principal={"AWS": f"{CALLER}-other"}))]) is NOT_ALLOWED


def test_naming_the_account_leaves_it_to_the_callers_own_policies():
    """Developer guide of KMS, "Default key policy": it enables IAM policies and allows nothing by itself."""
    key = [policy(allow("kms:*", Principal={"AWS": f"arn:aws:iam::{ACCOUNT}:root"}))]
    request = Request("kms:Decrypt", "arn:aws:kms:us-east-1:123456789012:key/1", CALLER)

    assert decide(request, [], key, resource_must_allow=True) is NOT_ALLOWED
    assert decide(request, [policy(allow("kms:Decrypt"))], key, resource_must_allow=True) is ALLOWED
    assert decide(request, [policy(allow("kms:Decrypt"))], [], resource_must_allow=True) is NOT_ALLOWED


def test_every_endpoint_on_the_way_must_allow():
    """docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html."""
    request = Request("s3:GetObject", "arn:aws:s3:::bucket/key", CALLER)
    other = [policy(allow(resources="arn:aws:s3:::other/*", Principal="*"))]

    assert decide(request, [policy(allow())], endpoint=other) is NOT_ALLOWED
    assert decide(request, [policy(allow())], endpoint=[policy(allow(Principal="*"))]) is ALLOWED
    assert decide(request, [], endpoint=[policy(allow(Principal="*"))]) is NOT_ALLOWED


# reference_policies_elements_action.html, ..._notaction.html, ..._resource.html


def test_an_action_matches_whatever_its_case_and_by_wildcards():
    for pattern in ("s3:GetObject", "s3:getobject", "s3:*", "s3:Get*", "*", "s3:Get?bject"):
        assert verdict(allow(pattern)) is ALLOWED, pattern


def test_an_allowance_of_all_but_some_actions():
    assert verdict({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}) is ALLOWED
    assert verdict({"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"}) is NOT_ALLOWED


def test_a_denial_of_all_but_some_resources():
    others = {"Effect": "Deny", "Action": "s3:*", "NotResource": "arn:aws:s3:::bucket/*"}

    assert verdict(allow(), others) is ALLOWED
    assert verdict(allow(), others, resource="arn:aws:s3:::other/key") is DENIED


def test_a_resource_matches_segment_by_segment():
    matching = ("bucket/key", "bucket/*", "bucket/k?y", "*")
    # "a wildcard can't span segments"
    others = ("arn:aws:s3:::bucket", "arn:aws:s3:::BUCKET/key", "arn:aws:s3*bucket/key")

    for pattern in ("*", *(f"arn:aws:s3:::{name}" for name in matching)):
        assert verdict(allow(resources=pattern)) is ALLOWED, pattern
    for pattern in others:
        assert verdict(allow(resources=pattern)) is NOT_ALLOWED, pattern


def test_the_last_segment_may_hold_colons():
    group = "arn:aws:autoscaling:us-east-1:1:autoScalingGroup:uuid:autoScalingGroupName/pool"
    pattern = "arn:aws:autoscaling:us-east-1:1:autoScalingGroup:*:autoScalingGroupName/po*"

    assert verdict(allow("*", pattern), action="autoscaling:DetachInstances", resource=group) is ALLOWED


# reference_policies_elements_condition.html: all keys and operators, any of the values


def test_every_operator_and_key_must_hold_and_any_of_their_values():
    condition = {
        "StringEquals": {"aws:PrincipalTag/department": ["finance", "hr"], "aws:PrincipalTag/role": "audit"},
        "DateGreaterThan": {"aws:CurrentTime": "2019-07-16T12:00:00Z"},
    }
    context = {
        "aws:PrincipalTag/department": "hr",
        "aws:PrincipalTag/role": "audit",
        "aws:CurrentTime": "2020-01-01T00:00:00Z",
    }

    assert holds(condition, context)
    for key in context:
        assert not holds(condition, context | {key: "2001-01-01T00:00:00Z"})


def test_the_case_of_a_key_does_not_matter_and_that_of_a_value_does():
    assert holds({"StringEquals": {"aws:PRINCIPALTAG/team": "a"}}, {"aws:PrincipalTag/Team": "a"})
    assert not holds({"StringEquals": {"aws:PrincipalTag/team": "a"}}, {"aws:PrincipalTag/team": "A"})


# reference_policies_elements_condition_operators.html

CASES = [
    ("StringEquals", "iamuser-admin", "iamuser-admin", True),
    ("StringEquals", "iam*", "iamuser-admin", False),
    ("StringEqualsIgnoreCase", "ADMIN", "admin", True),
    ("StringLike", "iamuser-admin-*", "iamuser-admin-1", True),
    ("StringLike", "iamuser-admin-*", "iamuser", False),
    ("StringNotEquals", "a", "b", True),
    ("StringNotEquals", "a", "a", False),
    ("StringNotLike", "a*", "ab", False),
    ("StringNotEqualsIgnoreCase", "A", "a", False),
    ("NumericLessThanEquals", "10", "10", True),
    ("NumericLessThanEquals", "10", "11", False),
    ("NumericLessThan", "1.2", "1.1", True),
    ("NumericLessThan", "1.2", "1.2", False),
    ("NumericGreaterThan", "5", "10", True),
    ("NumericNotEquals", "5", "5.0", False),
    ("DateLessThan", "2020-01-01T00:00:01Z", "2020-01-01T00:00:00Z", True),
    ("DateEquals", "1577836800", "2020-01-01T00:00:00Z", True),
    ("Bool", "true", "true", True),
    ("Bool", "false", "true", False),
    ("IpAddress", "203.0.113.0/24", "203.0.113.7", True),
    ("IpAddress", "203.0.113.0/24", "203.0.114.7", False),
    ("NotIpAddress", "203.0.113.0/24", "203.0.114.7", True),
    ("IpAddress", "2001:DB8:1234:5678::/64", "2001:db8:1234:5678::1", True),
    ("ArnEquals", "arn:aws:sns:*:123456789012:TOPIC-ID", "arn:aws:sns:us-east-1:123456789012:TOPIC-ID", True),
    ("ArnLike", "arn:aws:sns:*:TOPIC-ID", "arn:aws:sns:us-east-1:123456789012:TOPIC-ID", False),
    ("ArnNotLike", "arn:aws:sns:*:*:*", "arn:aws:sns:us-east-1:123456789012:TOPIC-ID", False),
]


def test_an_operator_compares_as_the_guide_says():
    wrong = [row for row in CASES if holds({row[0]: {"key": row[1]}}, {"key": row[2]}) is not row[3]]

    assert wrong == []


def test_an_absent_key_fails_what_is_positive_and_passes_what_is_negated():
    """The guide has this under "Negated matching condition operators" and at "...IfExists"."""
    for operator, wanted, found, expected in CASES:
        assert holds({operator: {"key": wanted}}, {}) is ("Not" in operator), operator
        assert holds({f"{operator}IfExists": {"key": wanted}}, {}), operator
        assert holds({f"{operator}IfExists": {"key": wanted}}, {"key": found}) is expected, operator


def test_a_negated_operator_with_several_values_wants_none_of_them():
    condition = {"StringNotEquals": {"key": ["a", "b"]}}

    assert [holds(condition, {"key": value}) for value in "abc"] == [False, False, True]


def test_a_denial_by_bool_does_not_see_an_absent_key_and_by_bool_if_exists_does():
    """The guide's example of multi-factor authentication."""
    plain = deny(condition={"Bool": {"aws:MultiFactorAuthPresent": "false"}})
    existing = deny(condition={"BoolIfExists": {"aws:MultiFactorAuthPresent": "false"}})

    assert verdict(allow(), plain) is ALLOWED
    assert verdict(allow(), existing) is DENIED
    assert verdict(allow(), existing, **{"aws:MultiFactorAuthPresent": "true"}) is ALLOWED


def test_null_asks_whether_a_key_is_there():
    assert holds({"Null": {"aws:TokenIssueTime": "true"}}, {})
    assert not holds({"Null": {"aws:TokenIssueTime": "true"}}, {"aws:TokenIssueTime": "2020"})
    assert holds({"Null": {"aws:TokenIssueTime": "false"}}, {"aws:TokenIssueTime": "2020"})


# reference_policies_condition-single-vs-multi-valued-context-keys.html

TAG_KEYS = {"aws:TagKeys": ["environment", "cost-center"]}


def test_for_all_values_wants_each_of_the_request_among_the_policys_and_holds_where_there_are_none():
    condition = {"ForAllValues:StringEquals": TAG_KEYS}

    assert holds(condition, {"aws:TagKeys": ["environment"]})
    assert not holds(condition, {"aws:TagKeys": ["environment", "owner"]})
    assert holds(condition, {})
    assert not holds(condition | {"Null": {"aws:TagKeys": "false"}}, {})


def test_for_any_value_wants_one_and_fails_where_there_are_none():
    condition = {"ForAnyValue:StringEquals": TAG_KEYS}

    assert holds(condition, {"aws:TagKeys": ["owner", "environment"]})
    assert not holds(condition, {"aws:TagKeys": ["owner"]})
    assert not holds(condition, {})


def test_several_values_without_a_set_operator_are_not_judged():
    with pytest.raises(PolicyError, match="has 2 values"):
        holds({"StringEquals": {"aws:TagKeys": "a"}}, {"aws:TagKeys": ["a", "b"]})


# reference_policies_variables.html

HOME = allow(resources="arn:aws:s3:::amzn-s3-demo-bucket/${aws:username}/*")


def test_a_variable_stands_for_the_value_of_its_key_and_matches_nothing_without_one():
    own, other, nobodys = (f"arn:aws:s3:::amzn-s3-demo-bucket/{name}/file" for name in ("ada", "bob", ""))

    assert verdict(HOME, resource=own, aws__username="ada") is ALLOWED
    assert verdict(HOME, resource=other, aws__username="ada") is NOT_ALLOWED
    assert verdict(HOME, resource=nobodys) is NOT_ALLOWED


def test_a_variable_may_have_a_default():
    of_team = allow(resources="arn:aws:s3:::bucket-${aws:PrincipalTag/team, 'company-wide'}/*")

    assert verdict(of_team, resource="arn:aws:s3:::bucket-company-wide/file") is ALLOWED
    named = {"aws:PrincipalTag/team": "yellow"}
    assert verdict(of_team, resource="arn:aws:s3:::bucket-yellow/file", **named) is ALLOWED
    assert verdict(of_team, resource="arn:aws:s3:::bucket-company-wide/file", **named) is NOT_ALLOWED


def test_a_wildcard_in_a_variables_value_is_a_letter():
    assert verdict(HOME, resource="arn:aws:s3:::amzn-s3-demo-bucket/bob/f", **{"aws:username": "*"}) is (
        NOT_ALLOWED
    )
    assert holds({"StringLike": {"key": "${*}x"}}, {"key": "*x"})
    assert not holds({"StringLike": {"key": "${*}x"}}, {"key": "yx"})


def test_the_older_language_knows_no_variables():
    request = Request("s3:GetObject", "arn:aws:s3:::b/${aws:username}", CALLER, {"aws:username": "ada"})
    old = policy(allow(resources="arn:aws:s3:::b/${aws:username}"), version="2008-10-17")

    assert decide(request, [old]) is ALLOWED


# what is refused


def test_an_unknown_operator_is_not_judged():
    for operator in ("StringMatches", "ForSomeValues:StringEquals"):
        with pytest.raises(PolicyError, match="is not judged here"):
            holds({operator: {"key": "value"}}, {"key": "value"})


def test_a_principal_of_a_service_is_that_service_alone():
    trust = policy(
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    )

    def assumed_by(principal):
        request = Request("sts:AssumeRole", "arn:aws:iam::123456789012:role/r", principal)
        return decide(request, [policy(allow())], [trust], resource_must_allow=True)

    assert assumed_by("ec2.amazonaws.com") is ALLOWED
    assert assumed_by("lambda.amazonaws.com") is NOT_ALLOWED
    assert assumed_by(CALLER) is NOT_ALLOWED
