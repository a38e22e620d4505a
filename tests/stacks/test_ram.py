"""The evaluator of RAM policies agrees with RAM's own examples.

They are at www.alibabacloud.com/help/en/ram/conditional-operator.
"""

import json

import pytest

from tests.stacks.iam import PolicyError, Request, Verdict
from tests.stacks.ram import decide


def judged(statements, action="ecs:StartInstance", resource="acs:ecs:cn-hangzhou:1:instance/i-1", **context):
    document = json.dumps({"Version": "1", "Statement": statements})
    return decide(Request(action, resource, context=context), [document])


TEAM = {
    "Effect": "Allow",
    "Action": "ecs:*",
    "Resource": "*",
    "Condition": {"StringEquals": {"acs:ResourceTag/team": ["dev"]}},
}


def test_a_tag_lets_in_whom_it_names_and_an_absent_tag_no_caller():
    assert judged([TEAM], **{"acs:ResourceTag/team": "dev"}) is Verdict.ALLOWED
    assert judged([TEAM], **{"acs:ResourceTag/team": "ops"}) is Verdict.NOT_ALLOWED
    assert judged([TEAM]) is Verdict.NOT_ALLOWED


def test_a_denial_takes_precedence():
    deny = {"Effect": "Deny", "Action": "ecs:StartInstance", "Resource": "*"}

    assert judged([TEAM, deny], **{"acs:ResourceTag/team": "dev"}) is Verdict.DENIED


def test_a_resource_matches_by_its_parts():
    verdicts = {
        "acs:ecs:*:1:instance/*": Verdict.ALLOWED,
        "acs:ecs:cn-hangzhou:*:instance/i-?": Verdict.ALLOWED,
        "acs:ecs:cn-shanghai:1:instance/*": Verdict.NOT_ALLOWED,
        "acs:ecs:*:2:instance/*": Verdict.NOT_ALLOWED,
    }

    found = {each: judged([{"Effect": "Allow", "Action": "ecs:*", "Resource": [each]}]) for each in verdicts}
    assert found == verdicts


def test_what_the_reference_leaves_open_is_an_error_rather_than_a_guess():
    hanging = {
        "Effect": "Allow",
        "Action": "ecs:*",
        "Resource": "*",
        "Condition": {"StringNotEquals": {"acs:ResourceTag/team": ["ops"]}},
    }

    with pytest.raises(PolicyError, match="how RAM reads an absent key"):
        judged([hanging])


@pytest.mark.parametrize("operator", ["Null", "ArnLike", "StringEqualsIfExists", "ForAllValues:StringEquals"])
def test_an_operator_that_ram_does_not_name_is_refused(operator):
    with pytest.raises(PolicyError, match="is not judged here"):
        judged([TEAM | {"Condition": {operator: {"acs:ResourceTag/team": ["dev"]}}}])
