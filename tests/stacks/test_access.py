"""Permissions by the stacks' registered policies, judged as both clouds judge them."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from gpu_fleet_image.core import keys
from gpu_fleet_image.instance.agent import kept_files
from gpu_fleet_stacks.settings import Market, Nat
from tests.stacks.clouds import WORDS
from tests.stacks.iam import Request, Verdict, decide, listed
from tests.stacks.judges import (
    ALICLOUD_ACCOUNTS,
    ALICLOUD_PAIR,
    AWS_ACCOUNTS,
    AWS_PAIR,
    DENIED,
    EVERYTHING,
    MAILING,
    MAY,
    MAY_NOT,
    NEIGHBOUR,
    SELF,
    AlicloudJudge,
    AwsJudge,
    Judge,
    Right,
    judge_of,
)

Rights = Iterator[Right]
LEDGER = "reaper/ledger/2026/11/21/i-1.json"
PAYLOAD = "image/payload/00.tar.gz"
LICENCES = [
    f"gpu-fleet:{tag}"
    for tag in (
        *("managed", "stack", "pool", "owner", "protected"),
        *("withdrawn", "keep-until", "keep-reason", "keep-by", "users"),
    )
]
KEEP = ["gpu-fleet:keep-until", "gpu-fleet:keep-reason", "gpu-fleet:keep-by", "gpu-fleet:users"]
WITHDRAWN = "gpu-fleet:withdrawn"
TAGS = ["ec2:CreateTags", "ec2:DeleteTags"]
SSE, SSE_KEY = "s3:x-amz-server-side-encryption", "s3:x-amz-server-side-encryption-aws-kms-key-id"
READS_AND_WRITES = ("GetObject", "PutObject")
WRITES = ("PutObject", "DeleteObject", "AbortMultipartUpload")
DESTROYS = ("DeleteObjectVersion", "PutBucketPolicy")


def of_instances(judge: Judge, name: str) -> Rights:
    """Yield the rights of a pool's instances on either cloud."""
    own, tags = partial(Right, f"{name}-instance"), judge.tags(name)
    stores, bucket = judge.stores, judge.bucket
    for target in (SELF, NEIGHBOUR):
        ends = "neither ends nor changes itself or a neighbour"
        yield own(ends, MAY_NOT, judge.ends, judge.instance(target), judge.on(target, name))
    yield own("changes nothing about its group", MAY_NOT, judge.group_changes, judge.group(name), tags)
    drains = [
        f"{judge.scaling}:{act}" for act in ("CompleteLifecycleAction", "RecordLifecycleActionHeartbeat")
    ]
    yield own("speaks of drains in its pool", MAY, drains, judge.group(name), tags)
    alone = partial(own, "speaks of drains in its own pool alone", MAY_NOT, drains)
    yield alone(judge.group(name), judge.tags("another"))
    yield alone(judge.group(name), judge.tags(name, stack="other"))
    yield from (alone(judge.group(other), judge.tags(other)) for other in judge.pools if other != name)
    for place in {*judge.pools, "another", f"{name}-more"}:
        verdicts, words = MAY if place == name else MAY_NOT, f"runs/words/ada/{place}/1/i-1/x"
        kept = f"{kept_files.place('s3://any', place, SELF).prefix}x"
        yield own("saves files of its own pool", verdicts, stores(*WRITES), bucket("data", kept))
        yield own("speaks of runs of its own pool", verdicts, stores("PutObject"), bucket("records", words))
    for kind in ("data", "checkpoints"):
        for place in {*judge.pools, "another", f"{name}-more", "keep"}:
            yield own("writes nothing of users", MAY_NOT, stores(*WRITES), bucket(kind, f"{place}/run/1"))
        for place in judge.pools:
            yield own("reads every pool's", MAY, stores("GetObject"), bucket(kind, f"{place}/run/1"))
        yield own("lists what is stored", MAY, stores(judge.listing), bucket(kind))
    for resource in (bucket("data"), bucket("data", f"{name}/file")):
        changes = "destroys no old version and changes no bucket"
        yield own(changes, MAY_NOT, stores(*DESTROYS, "DeleteBucket"), resource)
    yield from of_records(judge, own)
    yield own("neither ends nor lends the key", MAY_NOT, judge.key_ends, judge.key)


def of_records(judge: Judge, own: partial[Right]) -> Rights:
    """Yield the rights of a pool's instances to the stack's records."""
    stores, bucket = judge.stores, judge.bucket
    for key in ("reaper/lease.json", LEDGER):
        ledger = "reads and writes no ledger"
        yield own(ledger, MAY_NOT, stores(*READS_AND_WRITES, "DeleteObject"), bucket("records", key))
    policy = bucket("records", "reaper/policy.json")
    yield own("reads the policy", MAY, stores("GetObject"), policy)
    yield own("does not change the policy", MAY_NOT, stores("PutObject", "DeleteObject"), policy)
    wheels = MAY if judge.settings.network.nat is Nat.NONE else MAY_NOT
    for key, verdicts in {PAYLOAD: MAY, "image/wheels/torch.whl": wheels}.items():
        yield own("reads its payload and its wheels", verdicts, stores("GetObject"), bucket("records", key))
    others = ("image/files/driver.run", "image/00.tar", "image/payload-of-others/00.tar.gz")
    for key in (*others, "runs/jobs/ada/1/job.json", f"runs/words/ada/{judge.pools[0]}/1/{SELF}/state.json"):
        yield own("reads nothing else of the records", MAY_NOT, stores("GetObject"), bucket("records", key))
    yield own("does not list the records", MAY_NOT, stores(judge.listing), bucket("records"))
    accounts = keys.stored(keys.ACCOUNTS)
    yield own("reads the accounts", MAY, stores("GetObject"), bucket("records", accounts))
    for key in (PAYLOAD, accounts, "runs/jobs/ada/1/job.json", "runs/jobs/ada/1/cancel"):
        changes = "changes no payload, account or job"
        yield own(changes, MAY_NOT, stores("PutObject", "DeleteObject"), bucket("records", key))
    yield own("reads no roster", MAY_NOT, stores("GetObject"), bucket("records", "reaper/roster.json"))


def of_aws_instances(judge: AwsJudge, name: str) -> Rights:
    own = partial(Right, f"{name}-instance")
    me, neighbour = judge.on(SELF, name), judge.on(NEIGHBOUR, name)
    for tags in (KEEP, KEEP[:1], [WITHDRAWN]):
        kept = {"aws:TagKeys": tags}
        yield own("keeps, releases and withdraws itself", MAY, TAGS, judge.instance(SELF), me | kept)
        yield own("marks no neighbour", MAY_NOT, TAGS, judge.instance(NEIGHBOUR), neighbour | kept)
    for tag in ("managed", "stack", "pool", "owner", "protected", "taken", "idle-since", "reap-after"):
        for tags in ([f"gpu-fleet:{tag}"], [*KEEP, f"gpu-fleet:{tag}"]):
            changed = me | {"aws:TagKeys": tags}
            yield own("changes no other tag of itself", MAY_NOT, TAGS, judge.instance(SELF), changed)
    yield own("deletes not all its tags by naming none", MAY_NOT, TAGS[1:], judge.instance(SELF), me)
    for context in (judge.tags(name, stack="other") | {"aws:TagKeys": KEEP}, {"aws:TagKeys": ["Name"]}):
        yield own("marks nothing else", MAY_NOT, TAGS, judge.instance(SELF), me | context)
    # EC2 gives a role's session the instance's id for a name, and nobody else may take the role
    session = {"aws:userid": f"AROAEXAMPLE:{SELF}"}
    callers = {
        f"AROAEXAMPLE:{SELF}": MAY,
        f"AROAEXAMPLE:{NEIGHBOUR}": MAY_NOT,
        f"AROAEXAMPLE:{SELF}0": MAY_NOT,
        f"AROAOTHER:{SELF}": MAY_NOT,
        "AROAEXAMPLE:*": MAY_NOT,
    }
    for caller, verdicts in callers.items():
        where = judge.bucket("records", f"reaper/handshake/{caller}/20261121T120000Z/idle.json")
        said = "answers the sweep under its own name alone"
        yield own(said, verdicts, judge.stores(*READS_AND_WRITES), where, session)
        yield own("takes back no answer", MAY_NOT, judge.stores("DeleteObject"), where, session)
    for context, verdicts in (
        ({"kms:ViaService": f"s3.{judge.settings.region}.amazonaws.com"}, MAY),
        ({"kms:ViaService": f"ec2.{judge.settings.region}.amazonaws.com"}, MAY_NOT),
        ({}, MAY_NOT),
    ):
        yield own("uses the key through S3 alone", verdicts, ["kms:Decrypt"], judge.key, context)
    spaces = {f"GpuFleet/{judge.settings.name}": MAY, "GpuFleet/other": MAY_NOT, "AWS/EC2": MAY_NOT}
    for space, verdicts in spaces.items():
        says, context = "publishes metrics of its own stack alone", {"cloudwatch:namespace": space}
        yield own(says, verdicts, ["cloudwatch:PutMetricData"], "*", context)
    takes = ["iam:PassRole", "sts:AssumeRole", "sts:TagSession", "iam:PutRolePolicy", "ec2:RunInstances"]
    role = f"arn:aws:iam::{judge.settings.account_id}:role/x"
    yield own("gives itself no other rights", MAY_NOT, takes, role)
    put = partial(own, actions=["s3:PutObject"], resource=judge.bucket("data", f"{name}/keep/i-1/x"))
    own_key = {SSE: "aws:kms", SSE_KEY: judge.key}
    for context in ({}, own_key):
        yield put("writes by TLS under the stack's key", MAY, context=context)
    for context in (
        {"aws:SecureTransport": "false"},
        {"s3:TlsVersion": "1.1"},
        {SSE: "AES256"},
        {SSE: "aws:kms", SSE_KEY: "arn:aws:kms:us-east-1:999999999999:key/theirs"},
    ):
        yield put("writes by no plain HTTP, old TLS or other key", DENIED, context=context)


def of_alicloud_instances(judge: AlicloudJudge, name: str) -> Rights:
    pool = next(pool for pool in judge.settings.pools if pool.name == name)
    # those that a scaling configuration starts: a launch template asks for tokens itself
    hardens = MAY if pool.erdma or pool.market is Market.RESERVATION else MAY_NOT
    metadata = partial(Right, f"{name}-instance", actions=["ecs:ModifyInstanceMetadataOptions"])
    yield metadata("hardens itself", hardens, resource=judge.instance(SELF), context=judge.tags(name))
    for others in (judge.tags("another"), judge.tags(name, stack="other"), judge.tags(name, managed="false")):
        yield metadata("hardens no others", MAY_NOT, resource=judge.instance(SELF), context=others)
    own, records = partial(Right, f"{name}-instance"), partial(judge.bucket, "records")
    # RAM knows no variable for the caller: within the pool one instance can speak for another
    for place, verdicts in {name: MAY, f"{name}-large": MAY_NOT, "another": MAY_NOT}.items():
        where = records(f"reaper/handshake/{place}.i-1/20261121T120000Z/idle.json")
        answers = judge.stores(*READS_AND_WRITES, "GetObjectVersion")
        yield own("answers the sweep for its pool alone", verdicts, answers, where)
        yield own("takes back no answer", MAY_NOT, judge.stores("DeleteObject"), where)
    lists = partial(own, actions=judge.stores("ListObjectVersions"), resource=records())
    decision = f"reaper/handshake/{name}.i-1/20261121T120000Z/decision.json"
    yield lists("lists what its pool said", MAY, context={"oss:Prefix": decision})
    for prefix in ("reaper/ledger/", "reaper/handshake/", "reaper/handshake/another.i-1/", ""):
        yield lists("lists nothing else of the records", MAY_NOT, context={"oss:Prefix": prefix})
    yield lists("lists nothing else of the records", MAY_NOT)
    users = {f"users/{name}/i-1": MAY, f"users/{name}-more/i-1": MAY_NOT, "roster": MAY_NOT}
    for key, verdicts in users.items():
        says = "says who is on its own pool's instances"
        yield own(says, verdicts, judge.stores("PutObject"), records(f"reaper/{key}.json"))


def of_the_sweep(judge: Judge) -> Rights:
    """Yield the rights of the sweep on either cloud."""
    sweep, tags = partial(Right, "reaper"), judge.tags
    stores, records = judge.stores, partial(judge.bucket, "records")
    target, refused = judge.instance(NEIGHBOUR), judge.refusal
    yield sweep("terminates what its stack licenses", MAY, judge.sweeps, target, tags("dev"))
    unlicensed = [tags("dev", stack="other"), tags("dev", managed="false"), {}]
    protected = [tags("dev", protected=value) for value in ("true", "by the auditors", "")]
    for context in (*unlicensed, *protected):
        yield sweep("terminates nothing else", refused, judge.sweeps, target, context)
    for name in judge.pools:
        detach = partial(sweep, actions=[f"{judge.scaling}:DetachInstances"], resource=judge.group(name))
        yield detach("takes instances out of its stack's groups", MAY, context=tags(name))
        yield detach("takes none out of another stack's", MAY_NOT, context=tags(name, stack="other"))
    yield sweep("starts and changes no instance", MAY_NOT, judge.starts, judge.instance(SELF), tags("dev"))
    yield sweep("writes its ledger", MAY, stores(*READS_AND_WRITES), records(LEDGER))
    yield sweep("deletes no ledger", MAY_NOT, stores("DeleteObject", *DESTROYS), records(LEDGER))
    for place in (
        judge.bucket("data", "dev/keep/i-1/notes.txt"),
        judge.bucket("checkpoints", "dev/run/step-1"),
    ):
        yield sweep("reads and writes nothing that users store", MAY_NOT, stores(*READS_AND_WRITES), place)
    yield sweep("does not write what instances boot", MAY_NOT, stores("PutObject"), records(PAYLOAD))
    yield sweep("neither ends nor lends the key", MAY_NOT, judge.key_ends, judge.key)
    yield sweep("lists the records", MAY, stores(judge.listing), records())
    action, leftover = judge.removes
    removes = partial(sweep, actions=[action], resource=judge.arn(action.partition(":")[0], leftover))
    may_remove = MAY if judge.settings.reaper.leftovers.remove else MAY_NOT
    yield removes("removes leftovers where the stack says so", may_remove, context=tags("dev"))
    for others in ({"stack": "other"}, {"protected": "yes"}, {"protected": ""}):
        yield removes("removes no others", MAY_NOT, context=tags("dev", **others))
    for pool in judge.settings.pools:
        freezes = judge.settings.budget.on_exceeded == "freeze" and pool.purpose == "training"
        limits = partial(sweep, actions=judge.freezes, resource=judge.group(pool.name))
        verdicts, of_pool = MAY if freezes else MAY_NOT, tags(pool.name) | judge.most
        yield limits("freezes training pools where the stack says so", verdicts, context=of_pool)
        foreign = tags(pool.name, stack="other") | judge.most
        yield limits("freezes none of another stack", MAY_NOT, context=foreign)


def of_the_aws_sweep(judge: AwsJudge) -> Rights:
    sweep, me = partial(Right, "reaper"), judge.instance(SELF)
    said = judge.bucket("records", f"reaper/handshake/AROAEXAMPLE:{SELF}/20261121T120000Z/decision.json")
    yield sweep("hears what instances say and decides", MAY, judge.stores(*READS_AND_WRITES), said)
    for name in judge.pools:
        withdrawn = judge.tags(name, withdrawn="2026-11-21T12:00:00Z")
        yield sweep("terminates no instance that has withdrawn itself", DENIED, judge.sweeps, me, withdrawn)
    tags = judge.tags("dev")
    for tag in LICENCES:
        context = tags | {"aws:TagKeys": ["gpu-fleet:idle-since", tag]}
        yield sweep("never widens its licence by a tag", DENIED, TAGS, me, context)
    yield sweep("changes no attribute", DENIED, ["ec2:ModifyInstanceAttribute"], me, tags)
    elsewhere = judge.arn("autoscaling", "autoScalingGroup:0a1b:autoScalingGroupName/another")
    yield sweep("detaches from its groups alone", MAY_NOT, ["autoscaling:DetachInstances"], elsewhere, tags)
    marks = {"aws:TagKeys": ["gpu-fleet:idle-since", "gpu-fleet:reap-after"]}
    yield sweep("marks instances of its own stack", MAY, TAGS[:1], me, tags | marks)
    for context in (judge.tags("dev", stack="other") | marks, tags | {"aws:TagKeys": ["Name"]}, tags):
        yield sweep("marks nothing else", MAY_NOT, TAGS[:1], me, context)


def of_the_alicloud_sweep(judge: AlicloudJudge) -> Rights:
    sweep = partial(Right, "reaper")
    said = judge.bucket("records", "reaper/handshake/dev.i-1/20261121T120000Z/decision.json")
    hears = judge.stores(*READS_AND_WRITES, "GetObjectVersion")
    yield sweep("hears what instances say and decides", MAY, hears, said)
    reads = ["cms:QueryMetricLast", "cms:QueryMetricList"]
    yield sweep("reads heartbeats under the names that CloudMonitor checks", MAY, reads, "*")
    for tags in ({"stack": "other"}, {"managed": "false"}, {"protected": "true"}):
        ends, context = ["ecs:DeleteInstances", "ecs:StopInstances"], judge.tags("dev", **tags)
        denied = "is denied what it must never end, whatever else is attached"
        yield sweep(denied, DENIED, ends, judge.instance(NEIGHBOUR), context)
    singly, others = ["ecs:DeleteInstance", "ecs:StopInstance"], judge.tags("dev", stack="other")
    yield sweep("ends none of another stack", MAY_NOT, singly, judge.instance(NEIGHBOUR), others)
    for role, place in {f"{judge.pools[0]}-instance": "data", "reaper": "records"}.items():
        reads = partial(Right, role, actions=["oss:GetObject"], resource=judge.bucket(place, "reaper/x"))
        yield reads("reads by TLS", MAY)
        yield reads("reads no bucket by plain HTTP", DENIED, context={"acs:SecureTransport": "false"})


OF_CLOUD = {
    AwsJudge: (of_aws_instances, of_the_aws_sweep),
    AlicloudJudge: (of_alicloud_instances, of_the_alicloud_sweep),
}


@pytest.mark.parametrize("name", [*AWS_ACCOUNTS, *ALICLOUD_ACCOUNTS])
def test_instances_and_the_sweep_may_do_what_is_said_of_them_and_no_more(name):
    judge = judge_of(name)
    instances, the_sweep = OF_CLOUD[type(judge)]
    rights = [right for pool in judge.pools for of in (of_instances, instances) for right in of(judge, pool)]

    assert [*judge.wrong([*rights, *of_the_sweep(judge), *the_sweep(judge)])] == []


WRITABLE = {
    AWS_PAIR.name: [
        "arn:aws:s3:::gpu-fleet-aws-pair-data-123456789012/dev/keep/*",
        "arn:aws:s3:::gpu-fleet-aws-pair-records-123456789012/runs/words/*/dev/*",
        "arn:aws:s3:::gpu-fleet-aws-pair-records-123456789012/reaper/handshake/${aws:userid}/*",
    ],
    ALICLOUD_PAIR.name: [
        "acs:oss:*:1234567890123456:gpu-fleet-alicloud-pair-data-1234567890123456/dev/keep/*",
        "acs:oss:*:1234567890123456:gpu-fleet-alicloud-pair-records-1234567890123456/runs/words/*/dev/*",
        "acs:oss:*:1234567890123456:gpu-fleet-alicloud-pair-records-1234567890123456/reaper/handshake/dev.*",
        "acs:oss:*:1234567890123456:gpu-fleet-alicloud-pair-records-1234567890123456/reaper/users/dev/*",
    ],
}


@pytest.fixture
def pair() -> AwsJudge:
    return judge_of(AWS_PAIR.name)


@pytest.mark.parametrize("name", WRITABLE)
def test_an_instance_writes_nowhere_else(name):
    judge = judge_of(name)
    statements = [
        statement for text in judge.identity("dev-instance") for statement in json.loads(text)["Statement"]
    ]
    (write,) = judge.stores("PutObject")

    places = [listed(each["Resource"]) for each in statements if write in each["Action"]]

    assert [place for each in places for place in each] == WRITABLE[name]


def by_settings_of_aws() -> Iterator[tuple[Judge, Right]]:
    """Yield the rights of the sweep that settings add on AWS, and those that they do not."""
    pair, mailing, plain = (judge_of(name) for name in (AWS_PAIR.name, MAILING.name, AWS_ACCOUNTS[0]))
    sweep, gets = partial(Right, "reaper"), ["secretsmanager:GetSecretValue"]
    secret, more, other = (f"secret:rooms/{end}-AbCdEf" for end in ("vision", "vision-more", "other"))
    secrets = partial(pair.arn, "secretsmanager")
    through = {"kms:ViaService": f"secretsmanager.{pair.settings.region}.amazonaws.com"}
    roster = pair.bucket("records", "reaper/roster.json")
    yield pair, sweep("reads the named roster", MAY, ["s3:GetObject"], roster)
    yield pair, sweep("reads the named webhook", MAY, gets, secrets(secret))
    yield pair, sweep("decrypts the webhook", MAY, ["kms:Decrypt"], pair.key, through)
    yield pair, sweep("reads no other secret", MAY_NOT, gets, secrets(more))
    yield pair, sweep("reads no other secret", MAY_NOT, gets, secrets(other))
    yield pair, sweep("writes no secret", MAY_NOT, ["secretsmanager:PutSecretValue"], secrets(secret))
    yield plain, sweep("reads no secret", MAY_NOT, gets, plain.arn("secretsmanager", secret))
    own, theirs = (mailing.arn("ses", f"identity/{end}") for end in ("mail.example.com", "example.com"))
    fleet, boss = ({"ses:FromAddress": f"{who}@mail.example.com"} for who in ("fleet", "ceo"))
    mails = partial(sweep, actions=["ses:SendEmail"])
    yield mailing, mails("mails from the named sender", MAY, resource=own, context=fleet)
    yield mailing, mails("mails from no other", MAY_NOT, resource=own, context=boss)
    yield mailing, mails("mails from no other domain", MAY_NOT, resource=theirs, context=fleet)
    yield pair, mails("mails nothing without a sender", MAY_NOT, resource=own, context=fleet)
    limits = partial(sweep, actions=["autoscaling:UpdateAutoScalingGroup"])
    for part in ("MinSize", "LaunchTemplateVersionSpecified", "VPCZoneIdentifiers"):
        changed = pair.tags("dev-large") | pair.most | {f"autoscaling:{part}": "1"}
        says, group = "changes a largest size alone", pair.group("dev-large")
        yield pair, limits(says, MAY_NOT, resource=group, context=changed)
    training = pair.tags("dev-large") | pair.most
    elsewhere = pair.arn("autoscaling", "autoScalingGroup:0a1b:autoScalingGroupName/another")
    freezes = partial(Right, "reaper", "freezes its own groups alone", MAY_NOT, pair.freezes)
    yield pair, freezes(elsewhere, training)


def by_settings_of_alicloud() -> Iterator[tuple[Judge, Right]]:
    """Yield the rights of the sweep that settings add on Alibaba Cloud, and those that they do not."""
    pair, plain = judge_of(ALICLOUD_PAIR.name), judge_of("everything")
    sweep, secret = partial(Right, "reaper"), partial(pair.arn, "kms")
    gets, mails = ["kms:GetSecretValue"], ["dm:SingleSendMail"]
    assert not plain.settings.notify.anybody
    yield (
        pair,
        sweep("reads the roster", MAY, ["oss:GetObject"], pair.bucket("records", "reaper/roster.json")),
    )
    yield pair, sweep("mails", MAY, mails, "*")
    yield plain, sweep("mails nobody", MAY_NOT, mails, "*")
    yield pair, sweep("reads the named webhook", MAY, gets, secret("secret/rooms/vision"))
    yield pair, sweep("reads no other secret", MAY_NOT, gets, secret("secret/rooms/other"))
    yield plain, sweep("reads no secret", MAY_NOT, gets, plain.arn("kms", "secret/rooms/vision"))


@pytest.mark.parametrize("rights", [by_settings_of_aws, by_settings_of_alicloud])
def test_a_setting_adds_to_the_sweep_what_is_said_of_it_and_no_more(rights):
    assert [wrong for judge, right in rights() for wrong in judge.wrong([right])] == []


# what a setting adds on AWS


@pytest.mark.parametrize("name", WRITABLE)
def test_the_groups_of_a_pool_carry_the_tags_that_its_instances_are_let_in_by(name):
    judge = judge_of(name)
    groups = judge.found.of_type(WORDS[judge.settings.cloud].group)

    for group, pool in zip(groups, judge.pools, strict=True):
        tags = group.inputs["tags"]
        carried = tags if isinstance(tags, dict) else {tag["key"]: tag["value"] for tag in tags}
        let_in = {"gpu-fleet:stack": name, "gpu-fleet:pool": pool, "gpu-fleet:managed": "true"}
        assert carried.items() >= let_in.items()


def test_users_subscribe_to_their_own_notices_alone_and_where_mail_is_sent_need_not(pair):
    subscription = "aws:sns/topicSubscription:TopicSubscription"

    def filters(judge):
        found = (resource.inputs for resource in judge.found.of_type(subscription))
        return {each["endpoint"]: each.get("filterPolicy") for each in found}

    # who hears everything already gets no second subscription
    assert filters(pair) == {"team@example.com": None, "ada@example.com": '{"user": ["ada", "lovelace"]}'}
    assert filters(judge_of(MAILING.name)) == {"team@example.com": None}


def test_an_alarm_rings_where_a_user_could_not_be_reached_and_a_stack_names_users(pair):
    def watched(found):
        alarms = [resource.inputs for resource in found.of_type("aws:cloudwatch/metricAlarm:MetricAlarm")]
        return [alarm["name"] for alarm in alarms if alarm.get("metricName") == "SweepUsersUnreached"]

    assert watched(pair.found) == [f"gpu-fleet-{pair.settings.name}-reaper-unreached"]
    assert watched(judge_of("aws-dev").found) == []


# the way to buckets on AWS, and who takes its roles

SERVICE_BUCKETS = (
    "amazon-ssm-{region}",
    "aws-ssm-{region}",
    "{region}-birdwatcher-prod",
    "patch-baseline-snapshot-{region}",
    "prod-{region}-starport-layer-bucket",
    "ec2imagebuilder-toe-{region}-prod",
)


@pytest.mark.parametrize("name", AWS_ACCOUNTS)
def test_the_gateway_leads_to_the_stacks_buckets_and_carries_nothing_out(name):
    """The usual theft uses keys of another account, and copies to a bucket there."""
    judge = judge_of(name)
    own, theirs, ask = judge.settings.account_id, "999999999999", partial(judge.lets_through, "s3")

    for kind in ("data", "checkpoints", "records"):
        assert ask("s3:GetObject", judge.bucket(kind, "x"), own)
        assert ask("s3:ListBucket", judge.bucket(kind), own)
    for owner in (theirs, own, None):
        assert not ask("s3:PutObject", "arn:aws:s3:::exfiltration/secrets", owner)
    assert not ask("s3:PutObject", judge.bucket("data", "dev/x"), theirs)


@pytest.mark.parametrize("name", AWS_ACCOUNTS)
def test_what_services_keep_for_instances_can_be_read_and_not_written(name):
    judge = judge_of(name)
    kept = [f"arn:aws:s3:::{bucket.format(region=judge.settings.region)}/file" for bucket in SERVICE_BUCKETS]
    owners = (None, judge.settings.account_id)  # without a signature, and with one

    def may(action, resource):
        return {judge.lets_through("s3", action, resource, owner) for owner in owners}

    assert [place for place in kept if may("s3:GetObject", place) != {True}] == []
    assert [place for place in kept if may("s3:PutObject", place) != {False}] == []


def test_the_buckets_that_the_settings_name_pass_the_gateway_too(pair):
    for bucket in ("our-datasets", "open-images"):
        assert pair.lets_through("s3", "s3:ListBucket", f"arn:aws:s3:::{bucket}", None)
        assert pair.lets_through("s3", "s3:GetObject", f"arn:aws:s3:::{bucket}/a", None)
    assert not pair.lets_through("s3", "s3:GetObject", "arn:aws:s3:::our-datasets-2/a", None)


def test_interface_endpoints_are_for_callers_of_the_account_alone(pair):
    for service in ("ssm", "ec2", "monitoring", "kms", "sts"):
        ask = partial(pair.lets_through, service, "any:Action", "*")
        assert (ask(pair.settings.account_id), ask("999999999999")) == (True, False)


@pytest.mark.parametrize("name", AWS_ACCOUNTS)
def test_a_role_is_taken_by_its_service_alone(name):
    services = {"instance": "ec2.amazonaws.com", "reaper": "lambda.amazonaws.com"}
    strangers = {"ecs-tasks.amazonaws.com", "arn:aws:iam::999999999999:root", *services.values()}
    roles = [
        (role.inputs["assumeRolePolicy"], end)
        for role in judge_of(name).found.of_type("aws:iam/role:Role")
        for end in services
        if role.name.endswith(f"-{end}")
    ]

    def takes(policy, principal):
        context = {"aws:SourceAccount": "123456789012"}
        request = Request("sts:AssumeRole", "arn:aws:iam::1:role/r", principal, context)
        return decide(request, [EVERYTHING], [policy], resource_must_allow=True) is Verdict.ALLOWED

    assert {end for _, end in roles} == services.keys()
    for policy, end in roles:
        assert {principal for principal in strangers if takes(policy, principal)} == {services[end]}
