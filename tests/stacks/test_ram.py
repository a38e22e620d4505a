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


DENY = {"Effect": "Deny", "Action": "ecs:StartInstance", "Resource": "*"}
OF_DEV, OF_OPS = ({"acs:ResourceTag/team": team} for team in ("dev", "ops"))


def on(resource):
    return [{"Effect": "Allow", "Action": "ecs:*", "Resource": [resource]}]


VERDICTS = (
    # a tag lets in whom it names, and an absent one nobody
    ([TEAM], OF_DEV, Verdict.ALLOWED),
    ([TEAM], OF_OPS, Verdict.NOT_ALLOWED),
    ([TEAM], {}, Verdict.NOT_ALLOWED),
    # a denial takes precedence
    ([TEAM, DENY], OF_DEV, Verdict.DENIED),
    # a resource matches by its parts
    (on("acs:ecs:*:1:instance/*"), {}, Verdict.ALLOWED),
    (on("acs:ecs:cn-hangzhou:*:instance/i-?"), {}, Verdict.ALLOWED),
    (on("acs:ecs:cn-shanghai:1:instance/*"), {}, Verdict.NOT_ALLOWED),
    (on("acs:ecs:*:2:instance/*"), {}, Verdict.NOT_ALLOWED),
)


def test_a_policy_decides_as_the_reference_says():
    assert [row for row in VERDICTS if judged(row[0], **row[1]) is not row[2]] == []


REFUSED = {
    "StringNotEquals": "how RAM reads an absent key",  # which its reference leaves open
    **dict.fromkeys(("Null", "ArnLike", "StringEqualsIfExists"), "is not judged here"),
    "ForAllValues:StringEquals": "is not judged here",
}


@pytest.mark.parametrize("operator", REFUSED)
def test_what_the_reference_leaves_open_or_does_not_name_is_an_error_rather_than_a_guess(operator):
    with pytest.raises(PolicyError, match=REFUSED[operator]):
        judged([TEAM | {"Condition": {operator: {"acs:ResourceTag/team": ["ops"]}}}])
