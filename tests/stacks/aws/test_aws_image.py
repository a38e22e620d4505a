"""Images by EC2 Image Builder: the recipe's payload on the cloud's own base."""

import hashlib
import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.aws.image_documents import component_content
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.crossguard.model import Profile, Resource
from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome
from gpu_fleet_stacks.settings.quantities import canary_types
from tests.stacks.examples import BUILDING, pool, stack
from tests.stacks.policy_judge import violations
from tests.stacks.registered import named
from tests.stacks.registrations import ROOT, stood
from tests.stacks.registrations import declared as declared_of

PACKAGES, VERSIONS = (f"image/gpu_fleet_image/recipe/{name}.toml" for name in ("packages", "versions"))
PAYLOAD_SHA256 = hashlib.sha256((ROOT / PACKAGES).read_bytes()).hexdigest()
RECORDS = "gpu-fleet-test-records-123456789012"
BASE = {"id": "ami-0123456789abcdef0", "base_id": "ami-0aaaaaaaaaaaaaaaa"}
ROLE = "role/aws-service-role/imagebuilder.amazonaws.com/AWSServiceRoleForImageBuilder"


@pytest.fixture(scope="module")
def built():
    """Return the registrations and exports of a stack with a pipeline."""
    return stood(BUILDING)


def inputs(rehearsed, kind, label=""):
    """Return the inputs of the only Image Builder resource of a kind and a name's end, in the first zone."""
    ending = [resource for resource in of_kind(rehearsed, kind) if resource.name.endswith(label)]
    (found,) = [made.inputs for made in ending if not re.search(r"-image-[a-z]+-[a-z]+-\d", made.name)]
    return found


def of_kind(rehearsed, kind):
    return rehearsed.of_type(f"aws:imagebuilder/{kind[0].lower()}{kind[1:]}:{kind}")


def phases(component):
    return {phase["name"]: phase["steps"] for phase in yaml.safe_load(component["data"])["phases"]}


def key_of(rehearsed):
    return rehearsed.outputs["key_arn"]


def statements(rehearsed, role):
    policy = named(rehearsed, "aws:iam/rolePolicy:RolePolicy", f"gpu-fleet-test-{role}").inputs["policy"]
    return {part["Sid"]: part for part in json.loads(policy)["Statement"]}


def test_the_payload_is_stored_under_its_own_hash_with_the_stacks_key(built):
    stored = named(built, "aws:s3/bucketObjectv2:BucketObjectv2", "gpu-fleet-test-payload")
    place = {"key": f"image/{PAYLOAD_SHA256}.toml", "bucket": RECORDS, "kmsKeyId": key_of(built)}

    assert stored.outcome is RegistrationOutcome.CREATED
    assert stored.inputs.items() >= place.items()


def test_a_build_fetches_from_the_stacks_own_bucket_and_checks_the_hash_before_it_runs_the_recipe(
    built,
):
    steps = phases(inputs(built, "Component", "-recipe"))["build"]
    names = [step["name"] for step in steps]
    given = {step["name"]: step["inputs"] for step in steps}

    assert names.index("Fetch") < names.index("Check") < names.index("Unpack") < names.index("Provision")
    assert all(part["source"].startswith(f"s3://{RECORDS}/image/") for part in given["Fetch"])
    check = given["Check"]["commands"][0]
    assert PAYLOAD_SHA256 in check
    assert "sha256sum -c" in check
    assert given["Provision"]["commands"][0].startswith("TARGET=aws ")
    assert {step["onFailure"] for step in steps if "onFailure" in step} == {"Abort"}


def test_the_image_looks_at_itself_before_and_after_it_is_made(built):
    look = "/usr/libexec/gpu-fleet/check-image"

    assert phases(inputs(built, "Component", "-recipe"))["validate"][0]["inputs"]["commands"] == [look]
    assert phases(inputs(built, "Component", "-tests"))["test"][0]["inputs"]["commands"] == [f"{look} booted"]
    assert inputs(built, "ImagePipeline")["imageTestsConfiguration"]["imageTestsEnabled"] is True
    assert (ROOT / "image/gpu_fleet_image/recipe/rootfs" / look.removeprefix("/")).is_file()


def test_a_build_is_tried_on_the_cheapest_gpu_of_the_stack_before_it_is_distributed(built):
    workflow = inputs(built, "Workflow", "-canary")
    launch, run, terminate = yaml.safe_load(workflow["data"])["steps"]
    building, testing = inputs(built, "ImagePipeline")["workflows"]
    (made,) = of_kind(built, "Workflow")

    assert workflow["type"] == "TEST"
    assert workflow["kmsKeyId"] == key_of(built)
    assert launch["inputs"] == {"waitFor": "ssmAgent", "instanceTypesOverride": ["g5.xlarge"]}
    instance = {"instanceId.$": f"$.stepOutputs.{launch['name']}.instanceId"}
    assert (run["action"], run["inputs"], run["onFailure"]) == ("ExecuteComponents", instance, "Abort")
    assert (terminate["action"], terminate["inputs"]) == ("TerminateInstance", instance)
    assert building["workflowArn"].endswith(":aws:workflow/build/build-image/x.x.x")
    assert testing == {"workflowArn": made.outputs["arn"], "onFailure": "ABORT"}
    assert inputs(built, "ImagePipeline")["executionRole"].endswith(f":{ROLE}")


def test_a_canary_is_of_any_type_of_the_stack_that_runs_the_image_the_cheapest_first():
    pools = [pool(types=["p4d.24xlarge", "g6.xlarge"]), pool(name="old", types=["p3.2xlarge", "g5.xlarge"])]

    assert canary_types(stack(pools=pools)) == ["g6.xlarge", "g5.xlarge", "p4d.24xlarge"]
    assert canary_types(stack(pools=pools, image={"id": "ami-0123456789abcdef0", "canary": False})) == []


def test_a_canary_can_be_tried_in_every_zone_and_only_the_first_has_a_schedule(built):
    pipelines = {made.inputs["name"]: made.inputs for made in of_kind(built, "ImagePipeline")}
    infrastructure = of_kind(built, "InfrastructureConfiguration")
    places = {made.outputs["arn"]: made.inputs["subnetId"] for made in infrastructure}
    subnets = built.outputs["private_subnet_ids"]
    first, second = "gpu-fleet-test", "gpu-fleet-test-us-east-1b"

    tried = {name: places[made["infrastructureConfigurationArn"]] for name, made in pipelines.items()}
    assert tried == {first: subnets["us-east-1a"], second: subnets["us-east-1b"]}
    assert [name for name, pipeline in pipelines.items() if pipeline.get("schedule")] == [first]
    assert len({pipeline["imageRecipeArn"] for pipeline in pipelines.values()}) == 1
    assert pipelines[first]["workflows"] == pipelines[second]["workflows"]


def test_without_a_canary_image_builders_own_test_runs():
    declared = declared_of(stack(image=BASE | {"payload": PACKAGES, "canary": False}))

    assert of_kind(declared, "Workflow") == ()
    arns = [workflow["workflowArn"] for workflow in inputs(declared, "ImagePipeline")["workflows"]]
    assert arns[1].endswith(":aws:workflow/test/test-image/x.x.x")


def test_the_recipe_builds_both_components_on_the_named_base_all_of_it_under_the_stacks_key(built):
    recipe, components = inputs(built, "ImageRecipe"), of_kind(built, "Component")
    (disk,) = recipe["blockDeviceMappings"]
    (distribution,) = inputs(built, "DistributionConfiguration")["distributions"]

    made = {resource.outputs["arn"] for resource in components}
    assert {part["componentArn"] for part in recipe["components"]} == made
    assert recipe["parentImage"] == BUILDING.image.base_id
    assert (disk["ebs"]["encrypted"], disk["ebs"]["kmsKeyId"]) == ("true", key_of(built))
    assert distribution["amiDistributionConfiguration"]["kmsKeyId"] == key_of(built)
    assert {resource.inputs["kmsKeyId"] for resource in components} == {key_of(built)}


def test_the_builder_requires_tokens_in_a_private_subnet_without_ingress_and_reaches_the_endpoints(built):
    place = inputs(built, "InfrastructureConfiguration")
    group = built.outputs["security_group_ids"]["image-builder"]
    ingress = built.of_type("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")

    assert place["instanceMetadataOptions"]["httpTokens"] == "required"
    assert place["subnetId"] == built.outputs["private_subnet_ids"]["us-east-1a"]
    assert place["securityGroupIds"] == [group]
    assert [rule for rule in ingress if rule.inputs["securityGroupId"] == group] == []
    (let_in,) = [rule for rule in ingress if rule.inputs.get("referencedSecurityGroupId") == group]
    assert let_in.inputs["securityGroupId"] == built.outputs["security_group_ids"]["endpoints"]
    assert place["terminateInstanceOnFailure"] is True
    assert "keyPair" not in place


def test_the_builder_reads_its_payload_writes_its_log_and_touches_no_instance_or_data(built):
    allowed, images = statements(built, "builder"), statements(built, "images")
    records = f"arn:aws:s3:::{RECORDS}"

    assert allowed["Recipe"]["Resource"] == f"{records}/image/*"
    assert allowed["Log"]["Resource"] == f"{records}/image-logs/*"
    actions = {action for part in allowed.values() for action in part["Action"]}
    assert not [action for action in actions if action.split(":")[0] in ("ec2", "iam", "autoscaling")]
    assert "ssm:GetParameter" not in actions
    assert [sid for sid, part in allowed.items() if part["Resource"] == "*"] == ["Commands"]
    own = {"StringEquals": {"aws:ResourceTag/CreatedBy": "EC2 Image Builder"}}
    assert [images[sid]["Condition"] for sid in ("Images", "Snapshots")] == [own, own]
    assert not any("ec2:TerminateInstances" in part["Action"] for part in images.values())


def test_old_images_are_deleted_with_their_snapshots_and_the_last_ones_stay(built):
    policy = inputs(built, "LifecyclePolicy")
    (detail,) = policy["policyDetails"]
    recipe = inputs(built, "ImageRecipe")

    assert detail["action"] == {"type": "DELETE", "includeResources": {"amis": True, "snapshots": True}}
    assert detail["filter"]["retainAtLeast"] >= 1
    assert detail["exclusionRules"]["amis"]["lastLaunched"] == {"unit": "WEEKS", "value": 4}
    chosen = {"name": recipe["name"], "semanticVersion": recipe["version"]}
    assert policy["resourceSelection"]["recipes"] == [chosen]


def test_the_pipeline_runs_weekly_and_notifies_the_stacks_topic(built):
    schedule = inputs(built, "ImagePipeline")["schedule"]

    assert re.fullmatch(r"cron\(\d+ \d+ \? \* sun \*\)", schedule["scheduleExpression"])
    assert schedule["timezone"] == BUILDING.reaper.time_zone
    assert inputs(built, "InfrastructureConfiguration")["snsTopicArn"] == built.outputs["topic_arn"]


def test_only_image_builders_own_role_may_use_the_key_for_that_topic(built):
    (key,) = built.of_type("aws:kms/key:Key")
    said = {part["Sid"]: part for part in json.loads(key.inputs["policy"])["Statement"]}

    assert said["BuildsToTopic"]["Condition"]["StringEquals"] == {
        "kms:CallerAccount": "123456789012",
        "kms:ViaService": "sns.us-east-1.amazonaws.com",
        "aws:PrincipalArn": f"arn:aws:iam::123456789012:{ROLE}",
    }


def test_launch_templates_read_the_parameter_that_a_build_writes(built):
    (distribution,) = inputs(built, "DistributionConfiguration")["distributions"]
    (parameter,) = distribution["ssmParameterConfigurations"]

    assert parameter == {"parameterName": "/imagebuilder/gpu-fleet-test/ami", "dataType": "aws:ec2:image"}
    assert built.outputs["image_parameter"] == parameter["parameterName"]
    (template,) = built.of_type("aws:ec2/launchTemplate:LaunchTemplate")
    assert template.inputs["imageId"] == f"resolve:ssm:{parameter['parameterName']}"


def test_another_recipe_is_another_component_and_another_recipe_of_image_builder():
    def names(payload):
        found = declared_of(stack(image=BASE | {"payload": payload}))
        made = [inputs(found, kind, label) for kind, label in (("Component", "-recipe"), ("ImageRecipe", ""))]
        return {(each["name"], each["version"]) for each in made}

    assert not names(PACKAGES) & names(VERSIONS)


@given(st.lists(st.text(), min_size=1))
def test_a_version_follows_from_the_content_and_fits_image_builder(parts):
    version = image_files.semantic_version(image_files.digest(*parts))

    assert version == image_files.semantic_version(image_files.digest(*parts))
    assert all(0 <= int(part) < 2**30 for part in version.split("."))
    assert len(version.split(".")) == 3


def test_where_a_text_ends_counts():
    assert image_files.digest("ab", "c") != image_files.digest("a", "bc")


def test_a_component_is_small_enough_for_the_cloud():
    payload = image_files.read("image.payload", PACKAGES)

    assert len(component_content(BUILDING, payload)) < 16_000


def test_the_policy_pack_finds_nothing_in_the_build(built):
    found = tuple(Resource(made.type, made.name, made.inputs) for made in built.registrations)

    assert list(violations(found, Profile(regions=("*",)))) == []


def test_a_file_that_is_missing_is_named(register):
    with pytest.raises(StacksError, match=r"image\.payload = 'build/nonesuch\.tar': .* cannot be read: No"):
        register(stack(image=BASE | {"payload": "build/nonesuch.tar"}))


def test_only_a_stack_that_names_a_base_builds_images(declared):
    types = [made.type for made in declared.rehearsed.resources]
    kinds = [kind.rpartition(":")[2] for kind in types if "imagebuilder" in kind]
    names, outputs = declared.settings.image.built, declared.rehearsed.outputs

    assert ("ImagePipeline" in kinds) is bool(kinds) is names
    assert bool(outputs["image_pipeline_id"]) is bool(outputs["image_parameter"]) is names
    assert ("image-builder" in outputs["security_group_ids"]) is names
