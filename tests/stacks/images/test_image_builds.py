"""``gpu-fleet image build`` and ``rollback``: start once, follow, promote after tests, roll back."""

import hashlib
import re
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from click.testing import CliRunner

from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.images import command
from gpu_fleet_stacks.images.alicloud import AlicloudBuilds
from gpu_fleet_stacks.images.aws import AwsBuilds
from gpu_fleet_stacks.images.builds import POLL_S, RETRY_S, Build, BuildState, before, follow_until_tried
from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.settings import stack_files
from tests.stacks import alicloud_account, alicloud_examples, aws_account
from tests.stacks.examples import BUILDING, stack
from tests.stacks.registrations import declared

PIPELINE = "arn:aws:imagebuilder:us-east-1:123456789012:image-pipeline/gpu-fleet-test"
RECIPE = "arn:aws:imagebuilder:us-east-1:123456789012:image-recipe/gpu-fleet-test-0/1.0.0"
BUILD_ARN = "arn:aws:imagebuilder:us-east-1:123456789012:image/gpu-fleet-test-0/1.0.0/{}"
PARAMETER = "/imagebuilder/gpu-fleet-test/ami"
AMI = "ami-{:017x}"
EXECUTION = "wf-00000000-0000-0000-0000-000000000000"


def summary(number, status="AVAILABLE"):
    made = {"amis": [{"region": "us-east-1", "image": AMI.format(number)}]} if status == "AVAILABLE" else {}
    built = {"arn": BUILD_ARN.format(number), "state": {"status": status}, "outputResources": made}
    return built | {"dateCreated": f"2026-11-{number:02}T03:00:00Z"}


class Cloud:
    """An account with a pipeline; the cloud and the command write its parameter."""

    def __init__(self, images=(), statuses=(), promoted=None, sha256=None, settings=BUILDING):
        self.images, self.statuses, self.parameter = list(images), list(statuses), promoted
        self.started = {}  # number -> pipeline and status of what the command began
        sha256 = sha256 or image_files.recipe(settings).sha256
        pipeline = {"arn": PIPELINE, "name": "gpu-fleet-test", "imageRecipeArn": RECIPE}
        recipe = {"arn": RECIPE, "description": f"The recipe of gpu-fleet, sha256 {sha256}"}
        self.account = aws_account.Account(
            {
                "imagebuilder:ListImagePipelines": {"imagePipelineList": [pipeline]},
                "imagebuilder:GetImageRecipe": {"imageRecipe": recipe},
                "imagebuilder:ListImagePipelineImages": self.page,
                "imagebuilder:StartImagePipelineExecution": self.start,
                "imagebuilder:GetImage": self.image,
                "ssm:GetParameters": self.read,
                "ssm:PutParameter": self.write,
            }
        )
        self.builds = AwsBuilds(settings, Aws(self.account.client))

    def page(self, params):
        """Return one build a page."""
        arn, place = params["imagePipelineArn"], int(params.get("nextToken", 0))
        listed = [*self.images] if arn == PIPELINE else []
        listed += [summary(number, status) for number, (of, status) in self.started.items() if of == arn]
        more = {"nextToken": str(place + 1)} if place + 1 < len(listed) else {}
        return {"imageSummaryList": listed[place : place + 1], **more}

    def start(self, params):
        """Start one build for each token."""
        tokens = [asked["clientToken"] for asked in self.begun]
        number = 9 + tokens.index(params["clientToken"])
        self.started[number] = (params["imagePipelineArn"], "BUILDING")
        return {"imageBuildVersionArn": BUILD_ARN.format(number)}

    def image(self, params):
        number, status = int(params["imageBuildVersionArn"].rpartition("/")[2]), self.statuses.pop(0)
        if status == "AVAILABLE":
            self.parameter = AMI.format(number)  # the pipeline's own distribution writes it
        if number in self.started:
            self.started[number] = (self.started[number][0], status)
        return {"image": summary(number, status)}

    def read(self, _params):
        return {"Parameters": [{"Name": PARAMETER, "Value": self.parameter}] if self.parameter else []}

    def write(self, params):
        self.parameter = params["Value"]
        return {"Version": 2}

    def asked(self, operation):
        return [params for name, params in self.account.asked if name.endswith(f":{operation}")]

    @property
    def begun(self):
        """What the command asked for to start a build, each time."""
        return self.asked("StartImagePipelineExecution")


@pytest.fixture
def run(monkeypatch):
    """Return a function that runs the command with a fake cloud, without waits; it gives the result."""
    waited = []
    monkeypatch.setattr(command.time, "sleep", waited.append)
    monkeypatch.setattr(command, "_now", lambda: datetime(2026, 11, 22, 3, 0, tzinfo=UTC))

    def invoke(image_id, builds, settings=BUILDING, *flags):
        monkeypatch.setattr(stack_files, "settings_of", lambda _name: settings)
        monkeypatch.setattr(command, "builds_of", lambda _stack: builds)
        return CliRunner().invoke(image_id, ["aws-prod", *flags]), waited

    return invoke


def test_one_command_starts_follows_and_promotes(run):
    cloud = Cloud(statuses=["BUILDING", "BUILDING", "TESTING", "DISTRIBUTING", "AVAILABLE"])

    said, waited = run(command.build, cloud.builds)

    assert said.exit_code == 0, said.output
    assert said.output.splitlines() == [
        f"aws-prod: started build {BUILD_ARN.format(9)}",
        *("03:00 pending", "03:00 building", "03:00 testing", "03:00 distributing"),
        f"aws-prod: {AMI.format(9)} is built and tested; instances boot it once the stack file says below "
        f"image: parameter: {PARAMETER}, mode: baked, bundled: true (keep base_id and the rest; name either "
        "id or parameter) and `gpu-fleet up test` has run",
    ]
    assert waited == [POLL_S] * 5
    (started,) = cloud.begun
    assert started["imagePipelineArn"] == PIPELINE
    assert cloud.asked("PutParameter") == []  # the pipeline itself wrote it, after its tests


def test_a_stack_that_boots_what_it_builds_has_nothing_left_to_do(run):
    by_parameter = {"parameter": PARAMETER, "mode": "baked", "bundled": True}
    for image in (by_parameter, {"id": AMI.format(1), "mode": "baked"}):
        settings = stack(image=image | {"base_id": BUILDING.image.base_id})
        cloud = Cloud(statuses=["AVAILABLE"], settings=settings)

        said, _ = run(command.build, cloud.builds)

        assert said.output.splitlines()[-1] == f"aws-prod: {AMI.format(9)} is built and tested, and promoted"


def test_a_build_that_runs_is_followed_and_no_second_is_started(run):
    cloud = Cloud([summary(8), summary(9, "TESTING")], ["TESTING", "AVAILABLE"])

    said, _ = run(command.build, cloud.builds)

    assert said.output.splitlines()[0] == f"aws-prod: follows build {BUILD_ARN.format(9)}"
    assert cloud.begun == []
    # pasted below image:, it must give a stack that still builds
    printed = yaml.safe_load("{" + re.search(r"below image: (.*) \(keep", said.output).group(1) + "}")
    kept = {"base_id": BUILDING.image.base_id, "payload": BUILDING.image.payload}
    assert stack(image=printed | kept).image.built


def test_a_build_that_finished_is_reported_and_no_second_is_started_unless_asked_for_by_name(run):
    cloud = Cloud([summary(8), summary(9)], ["AVAILABLE"], promoted=AMI.format(9))
    rolled_back = Cloud([summary(8), summary(9)], promoted=AMI.format(8))

    said, waited = run(command.build, cloud.builds)
    assert said.exit_code == 0
    assert said.output.startswith(
        f"aws-prod: {AMI.format(9)} of this recipe was built and tested on 2026-11-09T03:00:00Z; instances"
    )
    assert (cloud.begun, waited) == ([], [])

    said, _ = run(command.build, rolled_back.builds)
    assert f"{AMI.format(8)} is promoted; --again builds a new one" in said.output
    assert rolled_back.parameter == AMI.format(8)

    said, _ = run(command.build, cloud.builds, BUILDING, "--again")
    assert said.exit_code == 0, said.output
    assert len(cloud.begun) == 1


def test_a_build_of_another_recipe_is_no_build_of_this_one_and_rollback_returns_to_it(run):
    other = summary(8) | {"arn": BUILD_ARN.format(8).replace("gpu-fleet-test-0", "gpu-fleet-test-1")}
    cloud, later = Cloud([other], ["AVAILABLE"]), Cloud([other, summary(9)], promoted=AMI.format(9))

    said, _ = run(command.build, cloud.builds)
    run(command.rollback, later.builds)

    assert len(cloud.begun) == 1, said.output
    assert later.parameter == AMI.format(8)


def test_a_failed_build_promotes_nothing_and_names_step_and_log(run):
    """It has room in another zone, and is not tried there."""
    cloud = full(Cloud(promoted=AMI.format(8)), 1)
    cloud.account.answers |= failing("LaunchCanary", "check-image exited with 1")

    said, _ = run(command.build, cloud.builds)

    assert isinstance(said.exception, StacksError)
    assert str(said.exception) == (
        f"build {BUILD_ARN.format(9)} failed: test: LaunchCanary: check-image exited with 1; "
        "its log: s3://gpu-fleet-test-records-123456789012/image-logs/"
    )
    assert cloud.parameter == AMI.format(8)
    assert len(cloud.begun) == 1


def test_what_keeps_a_pipeline_from_building_is_one_message(run):
    another, down, denied = Cloud(sha256="f" * 64), Cloud(), Cloud()
    down.account.answers["imagebuilder:ListImagePipelines"] = {"imagePipelineList": []}
    denied.account.answers["imagebuilder:StartImagePipelineExecution"] = aws_account.Refusal()

    for says, cloud, error in (
        ("builds another recipe than this gpu-fleet's", another, StacksError),
        ("no pipeline gpu-fleet-test in us-east-1: `gpu-fleet up test` first", down, StacksError),
        ("denied imagebuilder:StartImagePipelineExecution", denied, CannotCheckError),
    ):
        said, _ = run(command.build, cloud.builds)
        assert isinstance(said.exception, error)
        assert says in str(said.exception)
        assert cloud.started == {}


def test_each_cloud_has_its_own_builds_and_a_stack_without_a_base_gets_the_key_named():
    on_alicloud = alicloud_examples.stack(image={"id": "m-1", "base_id": "m-2"})

    assert isinstance(command.builds_of(BUILDING), AwsBuilds)
    assert isinstance(command.builds_of(on_alicloud), AlicloudBuilds)
    with pytest.raises(StacksError, match=r"test: image\.base_id = null: names the Ubuntu 24\.04"):
        command.builds_of(stack())


def test_rollback_promotes_the_build_before_and_a_second_one_returns_one_image_further(run):
    history = [summary(9, "FAILED"), summary(6), summary(7), summary(8), summary(5)]
    cloud = Cloud(history, promoted=AMI.format(8))

    said, _ = run(command.rollback, cloud.builds)

    assert said.exit_code == 0, said.output
    kind = {"Type": "String", "DataType": "aws:ec2:image", "Overwrite": True}
    assert cloud.asked("PutParameter") == [{"Name": PARAMETER, "Value": AMI.format(7)} | kind]
    assert f"{AMI.format(8)} is replaced by {AMI.format(7)} of 2026-11-07T03:00:00Z" in said.output
    run(command.rollback, cloud.builds)
    assert cloud.parameter == AMI.format(6)


def test_without_a_build_before_nothing_is_changed(run):
    for promoted, message in (
        (AMI.format(6), "the pipeline has no build before it"),
        ("ami-0123456789abcdef0", "which is none of the pipeline's builds"),
        (None, "no image is promoted"),
    ):
        cloud = Cloud([summary(6), summary(7, "FAILED")], promoted=promoted)

        said, _ = run(command.rollback, cloud.builds)

        assert message in str(said.exception)
        assert cloud.asked("PutParameter") == []


def test_a_build_whose_image_was_deleted_is_not_gone_back_to():
    states = (BuildState.DONE, BuildState.FAILED, BuildState.DONE)
    history = [Build(str(number), state, "", f"ami-{number}") for number, state in enumerate(states)]

    assert before(history, "ami-0").image_id == "ami-2"


ALICLOUD = alicloud_examples.stack(
    image={"id": "m-1", "base_id": "m-2", "payload": "image/gpu_fleet_image/recipe/packages.toml"}
)
ECS_NAME = f"gpu-fleet-test-{image_files.recipe(ALICLOUD).sha256[:12]}"


def executions(*rows):
    names = ("ExecutionId", "Status", "ImageId", "CreationTime", "Message")
    listed = [dict(zip(names, row, strict=False)) for row in rows]
    return {"ImagePipelineExecution": {"ImagePipelineExecutionSet": listed}}


def pipelines(**named):
    listed = [{"ImagePipelineId": known, "Name": name} for known, name in named.items()]
    return {"ImagePipeline": {"ImagePipelineSet": listed}}


@pytest.fixture
def ecs():
    """Return an account of Alibaba Cloud with the stack's pipeline, and its builds."""
    account = alicloud_account.Account(
        {
            "DescribeImagePipelines": pipelines(another="gpu-fleet-test-0", ours=ECS_NAME),
            "DescribeImagePipelineExecutions": executions(),
            "StartImagePipelineExecution": {"ExecutionId": "exec-1"},
        }
    )
    with alicloud_account.serving(account) as alicloud:
        yield account, AlicloudBuilds(ALICLOUD, alicloud)


def ends(account, *statuses, message=""):
    """The next build goes through these states."""
    left = list(statuses)
    account.answers["DescribeImagePipelineExecutions"] = lambda parameters: (
        executions(("exec-1", left.pop(0), "m-new", "", message))
        if "ExecutionId" in parameters
        else executions()
    )


def test_on_alibaba_cloud_the_image_is_built_and_the_stack_file_promotes_it(ecs, run):
    account, builds = ecs
    ends(account, "BUILDING", "TESTING", "SUCCESS")

    said, _ = run(command.build, builds, ALICLOUD)

    assert said.exit_code == 0, said.output
    assert said.output.splitlines()[1:4] == ["03:00 preparing", "03:00 building", "03:00 testing"]
    assert "once the stack file says below image: id: m-new, mode: baked, bundled: true" in said.output
    (started,) = [parameters for name, parameters in account.asked if name.startswith("Start")]
    assert started["ImagePipelineId"] == "ours"


def images(**made):
    """Return an answer of DescribeImages: image id -> its name and when it was made."""
    listed = [
        {"ImageId": image_id.replace("_", "-"), "ImageName": name, "CreationTime": created}
        for image_id, (name, created) in made.items()
    ]
    return {"Images": {"Image": listed}, "TotalCount": len(listed)}


def built(*numbers, name="gpu-fleet-test_built_"):
    return {f"m_{number}": (f"{name}{number}", f"2026-11-{number:02}") for number in numbers}


def test_on_alibaba_cloud_a_stack_that_follows_its_builds_boots_the_newest_and_rolls_back_by_the_file(
    ecs, run
):
    account, builds = ecs
    payload = "image/gpu_fleet_image/recipe/packages.toml"
    image = {"id": "m-1", "base_id": "m-2", "payload": payload, "mode": "baked"}
    builds._stack = alicloud_examples.stack(image=image)
    account.answers["DescribeImages"] = images(**built(7, 8), **built(9, name="mine"))
    newest = executions(("exec-8", "SUCCESS", "m-8", "2026-11-08"))
    account.answers["DescribeImagePipelineExecutions"] = newest

    done, _ = run(command.build, builds, ALICLOUD)
    back, _ = run(command.rollback, builds, ALICLOUD)
    account.answers["DescribeImages"] = images(**built(9, name="mine"))
    none, _ = run(command.rollback, builds, ALICLOUD)

    assert (done.exit_code, back.exit_code) == (0, 0)
    reported = "m-8 of this recipe was built and tested on 2026-11-08; instances boot it once `gpu-fleet up"
    assert f"{reported} test` has run" in done.output
    assert "m-8 is replaced by m-7" in back.output
    assert "below image: id: m-7, mode: baked, bundled: true" in back.output
    assert "no image is promoted" in str(none.exception)
    assert not [name for name, _ in account.asked if name.startswith("Start")]


def test_on_alibaba_cloud_a_build_that_did_not_pass_is_none(ecs, run):
    account, builds = ecs
    for status in ("FAILED", "TEST_FAILED", "PARTITION_SUCCESS", "CANCELLED"):
        ends(account, status, message="check-image exited with 1")
        said, _ = run(command.build, builds, ALICLOUD)
        assert str(said.exception) == "build exec-1 failed: check-image exited with 1"

    account.answers["DescribeImagePipelines"] = pipelines()
    of_another_payload, _ = run(command.build, builds, ALICLOUD)
    assert f"no pipeline {ECS_NAME}" in str(of_another_payload.exception)


def test_on_alibaba_cloud_rollback_names_the_image_before(ecs, run):
    account, builds = ecs
    # of another recipe: its pipeline is gone, and its builds with it
    account.answers["DescribeImagePipelines"] = pipelines()
    # what other stacks and people made lies between
    of_others = built(18, name="mine") | built(19, name="gpu-fleet-test-b_built_")
    own = built(17) | {"m_1": ("gpu-fleet-test_built_20", "2026-11-20")}
    account.answers["DescribeImages"] = images(**own, **of_others)

    said, _ = run(command.rollback, builds, ALICLOUD)

    assert said.exit_code == 0, said.output
    assert "m-1 is replaced by m-17 of 2026-11-17" in said.output
    assert "below image: id: m-17, mode: baked, bundled: true" in said.output


def test_on_alibaba_cloud_images_of_every_page_are_known(ecs):
    account, builds = ecs
    account.answers["DescribeImages"] = lambda parameters: (
        images(**built(*range(100 if parameters["PageNumber"] == "1" else 2))) | {"TotalCount": 102}
    )

    assert len(builds.made()) == 102


def test_without_a_file_the_checkouts_own_payload_is_built():
    recipe = image_files.recipe(stack(image={"id": AMI.format(1), "base_id": "ami-0aaaaaaaaaaaaaaaa"}))

    assert hashlib.sha256(recipe.path.read_bytes()).hexdigest() == recipe.sha256
    assert recipe.object_key == f"image/{recipe.sha256}.tar"


BAKED = {"parameter": PARAMETER, "mode": "baked", "bundled": True, "base_id": BUILDING.image.base_id}
SCANNED = stack(image=BAKED | {"payload": BUILDING.image.payload, "scan": True})
CRITICAL = {
    "severity": "CRITICAL",
    "fixAvailable": "YES",
    "packageVulnerabilityDetails": {
        "vulnerabilityId": "CVE-2026-1",
        "vulnerablePackages": [{"name": "openssl", "version": "3.0.13"}],
    },
}


def scanned(critical=(), status="COMPLETED", **cloud):
    """Return an account whose builds Amazon Inspector has scanned."""
    made = Cloud(settings=SCANNED, **cloud)
    counts = {"critical": len(critical), "high": 2, "medium": 3, "all": len(critical) + 5}
    of_build = {"imageBuildVersionArn": BUILD_ARN.format(9), "severityCounts": counts}

    def image(params):
        build = made.image(params)["image"] if made.statuses else summary(9)
        return {"image": build | {"scanState": {"status": status}}}

    made.account.answers |= {
        "imagebuilder:GetImage": image,
        "imagebuilder:ListImageScanFindingAggregations": {
            "aggregationType": "ImageBuildVersionArn",
            "responses": [{"imageAggregation": of_build}],
        },
        "imagebuilder:ListImageScanFindings": {"findings": list(critical)},
    }
    return made


def test_a_build_is_promoted_without_critical_findings_or_where_they_are_accepted_by_name(run):
    clean = scanned(statuses=["TESTING", "AVAILABLE"], promoted=AMI.format(8))
    accepted = scanned([CRITICAL], statuses=["AVAILABLE"], promoted=AMI.format(8))

    said, _ = run(command.build, clean.builds, SCANNED)
    forced, _ = run(command.build, accepted.builds, SCANNED, "--accept-findings")

    assert (said.exit_code, forced.exit_code) == (0, 0), said.output + forced.output
    assert (clean.parameter, accepted.parameter) == (AMI.format(9), AMI.format(9))
    (asked,) = clean.asked("ListImageScanFindingAggregations")
    assert asked["filter"] == {"name": "imageBuildVersionArn", "values": [BUILD_ARN.format(9)]}


def test_instances_boot_what_they_did_where_a_build_has_critical_findings(run):
    cloud = scanned([CRITICAL], statuses=["TESTING", "AVAILABLE"], promoted=AMI.format(8))

    said, _ = run(command.build, cloud.builds, SCANNED)

    assert said.exit_code == 1
    assert cloud.parameter == AMI.format(8)  # the pipeline had written the new one
    counts = f"{AMI.format(9)}: 1 critical, 2 high, 3 medium, 6 all; {AMI.format(8)} stays promoted"
    assert counts in str(said.exception)
    assert "\n  CVE-2026-1 in openssl 3.0.13, fix available: YES" in str(said.exception)


def test_what_no_scan_has_seen_is_not_clean(run):
    for status in ("PENDING", "FAILED", "TIMED_OUT"):
        cloud = scanned(status=status, statuses=["AVAILABLE"], promoted=AMI.format(8))

        said, _ = run(command.build, cloud.builds, SCANNED)

        assert f"its scan is {status.lower()}: no findings are known" in str(said.exception)
        assert cloud.parameter == AMI.format(8)


def test_the_promoted_images_findings_are_shown(run):
    for critical in ([], [CRITICAL]):
        cloud = scanned(critical, images=[summary(8), summary(9)], promoted=AMI.format(9))

        said, _ = run(command.scan, cloud.builds, SCANNED)

        assert said.exit_code == len(critical), said.output
        assert f"aws-prod: {AMI.format(9)} of 2026-11-09T03:00:00Z: {len(critical)} critical" in said.output
        assert said.output.count("CVE-2026-1") == len(critical)
    without, _ = run(command.scan, Cloud([summary(9)], promoted=AMI.format(9)).builds)
    assert "image.scan = false: true keeps Amazon Inspector's findings" in str(without.exception)


def test_a_pipeline_keeps_findings_only_where_the_setting_says_so():
    for settings, kept in ((SCANNED, {"imageScanningEnabled": True}), (BUILDING, None)):
        made = declared(settings).of_type("aws:imagebuilder/imagePipeline:ImagePipeline")
        assert made
        assert [each for each in made if each.inputs.get("imageScanningConfiguration") != kept] == []


def test_a_scan_that_no_scanner_would_make_is_refused():
    with pytest.raises(StacksError, match=r"image\.scan = true: is only for builds"):
        stack(image={"id": AMI.format(1), "scan": True})
    with pytest.raises(StacksError, match=r"image\.scan = true: is for AWS only"):
        alicloud_examples.stack(image={"id": "m-1", "base_id": "m-2", "scan": True})


ELSEWHERE = f"{PIPELINE}-us-east-1b"
NO_ROOM = "InsufficientInstanceCapacity: We currently do not have sufficient g5.xlarge capacity"
STEPS = "imagebuilder:ListWorkflowStepExecutions"


def failing(step, message):
    """Return answers by which this step of the test failed."""
    steps = [{"name": "Prepare", "status": "COMPLETED"}, {"name": step, "status": "FAILED"}]
    steps[1]["message"] = message
    runs = [
        {"type": kind, "status": status, "workflowExecutionId": EXECUTION}
        for kind, status in (("BUILD", "COMPLETED"), ("TEST", "FAILED"))
    ]
    return {"imagebuilder:ListWorkflowExecutions": {"workflowExecutions": runs}, STEPS: {"steps": steps}}


def full(cloud, tries):
    """Return an account without capacity for the canary so many times; its pipeline has two zones."""
    home = {"arn": PIPELINE, "name": "gpu-fleet-test", "imageRecipeArn": RECIPE}
    other = {"arn": ELSEWHERE, "name": "gpu-fleet-test-us-east-1b", "imageRecipeArn": RECIPE}
    cloud.statuses = ["FAILED"] * tries + ["AVAILABLE"]
    cloud.account.answers |= {"imagebuilder:ListImagePipelines": {"imagePipelineList": [other, home]}}
    cloud.account.answers |= failing("LaunchCanary", NO_ROOM)
    return cloud


def test_a_canary_that_finds_no_room_is_tried_in_the_next_zone(run):
    cloud = full(Cloud(promoted=AMI.format(8)), 2)

    said, waited = run(command.build, cloud.builds)

    assert said.exit_code == 0, said.output
    assert [asked["imagePipelineArn"] for asked in cloud.begun] == [PIPELINE, ELSEWHERE, PIPELINE]
    assert waited.count(RETRY_S) == 2
    assert len({asked["clientToken"] for asked in cloud.begun}) == 3
    assert f"no room: build {BUILD_ARN.format(9)} failed: test: LaunchCanary: Insufficient" in said.output
    assert cloud.parameter == AMI.format(11)


def test_a_build_that_the_stacks_controller_began_meanwhile_is_followed(run):
    """Two retries at once would pay for two builds, and the slower one would be promoted."""
    cloud = full(Cloud(promoted=AMI.format(8)), 1)
    fails = cloud.account.answers[STEPS]

    def controller_comes_first(_params):
        cloud.started[10] = (ELSEWHERE, "BUILDING")
        return fails

    cloud.account.answers[STEPS] = controller_comes_first

    said, _ = run(command.build, cloud.builds)

    assert said.exit_code == 0, said.output
    assert f"follows build {BUILD_ARN.format(10)}" in said.output
    assert len(cloud.begun) == 1


def test_two_that_build_at_once_begin_one_build():
    cloud = Cloud([summary(8)])

    first = cloud.builds.start()
    cloud.account.answers["imagebuilder:ListImagePipelineImages"] = {"imageSummaryList": [summary(8)]}
    # as the other saw the account before the first began
    second = AwsBuilds(BUILDING, Aws(cloud.account.client)).start()

    assert first.id == second.id


def test_after_six_hours_without_room_nothing_is_promoted():
    cloud = full(Cloud(promoted=AMI.format(8)), 99)
    start, steps = datetime(2026, 11, 22, 3, 0, tzinfo=UTC), iter(range(99))

    def now():
        return start + timedelta(minutes=20 * next(steps))

    with pytest.raises(StacksError, match="no instance to test on in 6 hours, nothing is promoted"):
        follow_until_tried(cloud.builds, cloud.builds.start(), lambda line: None, now, lambda seconds: None)
    assert 4 <= len(cloud.begun) <= 10
    assert cloud.parameter == AMI.format(8)
