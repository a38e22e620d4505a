"""How a run fails: naming the resource, in the words of whoever refused it, leaving the next run sound."""

import pulumi
import pulumi_aws as aws
import pytest

from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.rehearsal.errors import CreationError, RehearsalError, UnknownInvokeError
from gpu_fleet_stacks.rehearsal.program import read_config
from tests.stacks.rehearsal.examples import run


def lost_subnet():
    return aws.ec2.Subnet("lost", vpc_id="vpc-missing", cidr_block="10.0.0.0/24")


def nowhere():
    provider = aws.Provider("nowhere", region="xx-nowhere-1")
    aws.ec2.Vpc("lost", cidr_block="10.0.0.0/16", opts=pulumi.ResourceOptions(provider=provider))


def without_status():
    aws.s3.BucketVersioning("versions", bucket="mine", versioning_configuration={"mfa_delete": "Disabled"})


# In the words of moto, of boto3, of what moto stumbles over, and of a creator that misses an input.
REFUSED = {
    r"aws:ec2/subnet:Subnet 'lost' was refused: CreateSubnet: InvalidVpcID.NotFound: VpcID vpc-missing does "
    r"not exist\.$": lost_subnet,
    r"aws:s3/bucket:Bucket 'data' was refused: .*Invalid bucket name": lambda: aws.s3.Bucket(
        "data", bucket="not a name"
    ),
    r"aws:ec2/vpc:Vpc 'lost' was refused: .*xx-nowhere-1": nowhere,
    r"BucketVersioning 'versions' was refused: .* has 'status'": without_status,
}


def test_a_refusal_names_the_resource_and_the_reason_and_a_run_after_it_succeeds(clients):
    for reason, program in REFUSED.items():
        with pytest.raises(CreationError, match=reason):
            run(program)

    assert run(lambda: aws.sns.Topic("alarms")).created == 1


def test_nothing_that_depends_on_a_refused_resource_is_made(clients):
    with pytest.raises(CreationError):
        run(lambda: aws.sns.Topic("alarms", display_name=lost_subnet().id))

    assert clients("sns").list_topics()["Topics"] == []


def test_an_error_of_the_program_itself_comes_out_as_it_is(clients):
    def program():
        raise pulumi.RunError("the settings are wrong")

    with pytest.raises(pulumi.RunError, match="the settings are wrong"):
        run(program)


def test_an_unknown_provider_function_is_refused_with_those_that_are_known(clients):
    def program():
        pulumi.export("zone", aws.route53.get_zone_output(name="example.com").zone_id)

    with pytest.raises(UnknownInvokeError, match=r"aws:route53/getZone:getZone.*aws:ssm/getParameter"):
        run(program)


def test_a_cloud_is_never_reached(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)

    with pytest.raises(RehearsalError, match="AWS_ENDPOINT_URL = '': must be a moto server"):
        run(lambda: aws.sns.Topic("alarms"))


def test_a_stack_file_that_is_missing_or_none_is_refused(tmp_path):
    with pytest.raises(StacksError, match=r"no stack 'nowhere'; known: alicloud-dev, .*, local"):
        read_config("nowhere")
    path = tmp_path / "Pulumi.bad.yaml"
    for content in ("config: [1]", "- list", "config: {a: ["):
        path.write_text(content)
        with pytest.raises(StacksError, match=str(path)):
            read_config("bad", path)
