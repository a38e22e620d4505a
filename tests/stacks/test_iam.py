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


def holds(condition, context):
    request = Request("s3:GetObject", "arn:aws:s3:::bucket/key", CALLER, context)
    return decide(request, [policy(allow(condition=condition))]) is ALLOWED


# reference_policies_evaluation-logic.html


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


KEY = "arn:aws:s3:::bucket/key"
OTHER = "arn:aws:s3:::other/key"
TEAM_FILE = "arn:aws:s3:::bucket-{}/file"
HOME = allow(resources="arn:aws:s3:::homes/${aws:username}/*")
OF_TEAM = allow(resources="arn:aws:s3:::bucket-${aws:PrincipalTag/team, 'company-wide'}/*")
ALL_BUT_IAM, ALL_BUT_S3 = (
    {"Effect": "Allow", "NotAction": but, "Resource": "*"} for but in ("iam:*", "s3:*")
)
OTHERS = {"Effect": "Deny", "Action": "s3:*", "NotResource": "arn:aws:s3:::bucket/*"}
GROUP = "arn:aws:autoscaling:us-east-1:1:autoScalingGroup:{}:autoScalingGroupName/{}"
MFA = "aws:MultiFactorAuthPresent"
PLAIN, EXISTING = (deny(condition={f"Bool{end}": {MFA: "false"}}) for end in ("", "IfExists"))
ADA, YELLOW = {"aws:username": "ada"}, {"aws:PrincipalTag/team": "yellow"}
# What the guide says of statements, the resource and the context of a request, by its page.
VERDICTS = (
    # reference_policies_evaluation-logic.html
    ([allow("s3:PutObject")], KEY, {}, NOT_ALLOWED),
    ([allow(), deny("s3:GetObject")], KEY, {}, DENIED),
    # reference_policies_elements_action.html, ..._notaction.html: whatever its case, and by wildcards
    *(
        ([allow(action)], KEY, {}, ALLOWED)
        for action in ("s3:GetObject", "s3:getobject", "s3:*", "s3:Get*", "*", "s3:Get?bject")
    ),
    ([ALL_BUT_IAM], KEY, {}, ALLOWED),
    ([ALL_BUT_S3], KEY, {}, NOT_ALLOWED),
    # ..._notresource.html
    ([allow(), OTHERS], KEY, {}, ALLOWED),
    ([allow(), OTHERS], OTHER, {}, DENIED),
    # ..._resource.html: segment by segment; "a wildcard can't span segments", and the last may hold colons
    *(([allow(resources=f"arn:aws:s3:::{name}")], KEY, {}, ALLOWED) for name in ("bucket/key", "bucket/*")),
    *(([allow(resources=f"arn:aws:s3:::{name}")], KEY, {}, ALLOWED) for name in ("bucket/k?y", "*")),
    *(
        ([allow(resources=f"arn:aws:s3{end}")], KEY, {}, NOT_ALLOWED)
        for end in (":::bucket", ":::BUCKET/key")
    ),
    ([allow(resources="arn:aws:s3*bucket/key")], KEY, {}, NOT_ALLOWED),
    ([allow(resources=GROUP.format("*", "po*"))], GROUP.format("uuid", "pool"), {}, ALLOWED),
    # the guide's example of multi-factor authentication: a plain Bool does not see an absent key
    ([allow(), PLAIN], KEY, {}, ALLOWED),
    ([allow(), EXISTING], KEY, {}, DENIED),
    ([allow(), EXISTING], KEY, {MFA: "true"}, ALLOWED),
    # reference_policies_variables.html: the value of its key, nothing without one, or a default
    ([HOME], "arn:aws:s3:::homes/ada/file", ADA, ALLOWED),
    ([HOME], "arn:aws:s3:::homes/bob/file", ADA, NOT_ALLOWED),
    ([HOME], "arn:aws:s3:::homes//file", {}, NOT_ALLOWED),
    ([OF_TEAM], TEAM_FILE.format("company-wide"), {}, ALLOWED),
    ([OF_TEAM], TEAM_FILE.format("yellow"), YELLOW, ALLOWED),
    ([OF_TEAM], TEAM_FILE.format("company-wide"), YELLOW, NOT_ALLOWED),
    # a wildcard in the value is a letter
    ([HOME], "arn:aws:s3:::homes/bob/f", {"aws:username": "*"}, NOT_ALLOWED),
)


def test_a_policy_decides_as_the_guide_says():
    found = [
        (row, decide(Request("s3:GetObject", row[1], CALLER, row[2]), [policy(*row[0])])) for row in VERDICTS
    ]

    assert [row for row, verdict in found if verdict is not row[3]] == []


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


TAG_KEYS = {"aws:TagKeys": ["environment", "cost-center"]}
NULL, NOT_NULL = ({"Null": {"aws:TokenIssueTime": wanted}} for wanted in ("true", "false"))
ALL, ANY = ({f"For{each}:StringEquals": TAG_KEYS} for each in ("AllValues", "AnyValue"))
# What conditions say of a context: several values of a negated operator, Null, and set operators.
CONTEXTS = (
    *(({"StringNotEquals": {"key": ["a", "b"]}}, {"key": value}, value == "c") for value in "abc"),
    (NULL, {}, True),
    (NULL, {"aws:TokenIssueTime": "2020"}, False),
    (NOT_NULL, {"aws:TokenIssueTime": "2020"}, True),
    # reference_policies_condition-single-vs-multi-valued-context-keys.html
    (ALL, {"aws:TagKeys": ["environment"]}, True),
    (ALL, {"aws:TagKeys": ["environment", "owner"]}, False),
    (ALL, {}, True),
    (ALL | {"Null": {"aws:TagKeys": "false"}}, {}, False),
    (ANY, {"aws:TagKeys": ["owner", "environment"]}, True),
    (ANY, {"aws:TagKeys": ["owner"]}, False),
    (ANY, {}, False),
    # the case of a key does not matter, and that of a value does
    ({"StringEquals": {"aws:PRINCIPALTAG/team": "a"}}, {"aws:PrincipalTag/Team": "a"}, True),
    ({"StringEquals": {"aws:PrincipalTag/team": "a"}}, {"aws:PrincipalTag/team": "A"}, False),
    # an escaped wildcard is a letter
    ({"StringLike": {"key": "${*}x"}}, {"key": "*x"}, True),
    ({"StringLike": {"key": "${*}x"}}, {"key": "yx"}, False),
)


def test_a_condition_holds_as_the_guide_says():
    assert [row for row in CONTEXTS if holds(row[0], row[1]) is not row[2]] == []


def test_several_values_without_a_set_operator_are_not_judged():
    with pytest.raises(PolicyError, match="has 2 values"):
        holds({"StringEquals": {"aws:TagKeys": "a"}}, {"aws:TagKeys": ["a", "b"]})


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
