"""AWS around one virtual machine: the stack in moto, endpoints under their names, the metadata service."""

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from moto.backends import get_backend

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.instance.credentials.sessions import account_in
from gpu_fleet_stacks.aws.submit import ACCOUNT_TAG
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.rehearsal import instances, sweeps
from gpu_fleet_stacks.rehearsal.bucket_policies import conditions_left_out
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, run_program
from gpu_fleet_stacks.settings import stack_files
from tests.image.stand_ins import ec2_metadata, hours
from tests.image.stand_ins.account import Account
from tests.image.stand_ins.hours import Heartbeat
from tests.image.stand_ins.https_front import Forward, RefusedError, Request, https_front
from tests.image.stand_ins.signatures import Keys, SignatureError, check
from tests.image.virtual_machine import VirtualMachine
from tests.stacks.judges import AwsJudge

STACK, POOL, REGION = "aws-dev", "spot", "us-east-1"
SERVICES = ("autoscaling", "ec2", "monitoring", "s3", "ssm", "sts")
# boto3 in us-east-1 uses S3's older name, which leads to that region
# (docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html, "Legacy endpoints").
S3_NAMES = (f"s3.{REGION}.amazonaws.com", "s3.amazonaws.com")
MAC = "52:54:00:12:34:56"  # of QEMU's first network card
MOTO_USER = "AKIAIOSFODNN7EXAMPLE"  # what moto's STS calls whoever asks
KEYS = Keys("ASIABOOTTESTBOOTTEST", "secret-of-the-role", "token-of-the-role")
TAGS = f"{ec2_metadata.LATEST}meta-data/tags/instance/"
# By these cloud-init knows EC2 before it asks anything (doc/rtd/reference/datasources/ec2, "ds-identify").
FIRMWARE_ID = "ec2e1916-9099-7caf-fd21-012345abcdef"


@dataclass
class Aws(Account):
    """The account, and the instance as moto's group launched it.

    Attributes:
        clients: a person's clients of moto, with keys of their own.
        function: the sweep's, unpacked from the archive that the stack registered.
    """

    clients: RegionClients
    function: sweeps.Function
    subnet, front_at, metadata_at = "169.254.169.0/24", "169.254.169.100", ec2_metadata.ADDRESS
    firmware: ClassVar = {"uuid": FIRMWARE_ID, "serial": FIRMWARE_ID, "manufacturer": "Amazon EC2"}

    def heartbeats(self) -> list[Heartbeat]:
        """Every ``SecondsSinceActivity`` of the instance, oldest first."""
        found = self._published(METRIC_SECONDS_SINCE_ACTIVITY)
        # moto keeps naive UTC
        return [Heartbeat(datum.timestamp.replace(tzinfo=UTC), datum.value) for datum in found]

    def _published(self, metric: str) -> list[Any]:
        backend: Any = get_backend("cloudwatch")[self.clients.account_id][REGION]
        found = [
            datum
            for datum in list(backend.metric_data)
            if datum.name == metric
            and any(dimension.value == self.instance.id for dimension in datum.dimensions)
        ]
        return sorted(found, key=lambda datum: datum.timestamp)

    def tags(self) -> dict[str, str]:
        """The instance's tags."""
        picture = instances.pictures(self.clients, STACK)[self.instance.id]
        return {tag["Key"]: tag["Value"] for tag in picture.get("Tags", [])}

    def state(self) -> str:
        """The instance's state in EC2."""
        return str(instances.pictures(self.clients, STACK)[self.instance.id]["State"]["Name"])

    def publish_people(self, roster: str) -> None:
        """Put a roster where the stack's next `up` would."""
        key = keys.stored(keys.ACCOUNTS)
        self.s3.put_object(Bucket=self.bucket("records"), Key=key, Body=roster.encode())

    def sweep(self) -> dict[str, Any]:
        """Run the sweep's function once, as Lambda does; its answer with each verdict."""
        return sweeps.by_function(self.function)

    def pass_hours(self, guest: VirtualMachine, passed: timedelta) -> None:
        """Let hours go by in which nothing happens: see ``hours``. Moved are, and nothing else is:

        the time of launch, the heartbeats so far, the mark's two tags where it is marked, the last input of
        each terminal, and what the agent knows of its last activity. Each minute in between gets the
        heartbeat that continues the last one.
        """
        wrote = hours.agent_sleeps(guest)
        for datum in self._published(METRIC_SECONDS_SINCE_ACTIVITY):
            datum.timestamp -= passed
        newest = self.heartbeats()[-1]
        launched = instances.pictures(self.clients, STACK)[self.instance.id]["LaunchTime"]
        instances.date_back(self.clients, self.instance.id, launched.astimezone(UTC) - passed)
        if moved := [{"Key": key, "Value": value} for key, value in self.mark_before(passed).items()]:
            self.clients("ec2").create_tags(Resources=[self.instance.id], Tags=moved)
        data = [
            {
                "MetricName": METRIC_SECONDS_SINCE_ACTIVITY,
                "Dimensions": [{"Name": "InstanceId", "Value": self.instance.id}],
                "Value": heartbeat.value,
                "Timestamp": heartbeat.timestamp,
            }
            for heartbeat in hours.continued(newest, datetime.now(UTC))
        ]
        namespace = naming.metric_namespace(STACK)
        self.clients("cloudwatch").put_metric_data(Namespace=namespace, MetricData=data)
        hours.agent_goes_on(guest, wrote, passed)


class WithTags(ec2_metadata.Tree):
    """What the instance is told, and its own tags as they are now: ``instance_metadata_tags`` of EC2."""

    def __init__(self, answers: Mapping[str, str], tags: Callable[[], Mapping[str, str]]) -> None:
        super().__init__({**answers, **{f"{TAGS}{key}": value for key, value in tags().items()}})
        self._tags = tags

    def get(self, path: str, default: Any = None) -> Any:
        """Return what is at a path; None, or `default`, for a tag that is not there now."""
        _, _, name = path.partition(TAGS)
        return self._tags().get(name, default) if name else super().get(path, default)


@contextmanager
def aws_account(folder: Path) -> Iterator[Aws]:
    """Run the real program against moto, let its group launch one instance, open the endpoints."""
    with moto_server(REGION) as endpoint, metadata_service() as metadata, conditions_left_out():
        clients = RegionClients(REGION)
        rehearsed = run_program(STACK, clients=clients)
        buckets = [uri.removeprefix("s3://") for uri in rehearsed.outputs["bucket_uris"].values()]
        hosts = (
            *(f"{name}.{REGION}.amazonaws.com" for name in SERVICES),
            *(f"{bucket}.{name}" for bucket in buckets for name in S3_NAMES),
        )
        rights = Rights(rehearsed)
        with https_front(folder / "front", hosts, _route(endpoint, rights)) as front:
            instance = _launched(clients, rehearsed)
            rights.instance_id = instance.id
            template = clients("ec2").describe_launch_template_versions(
                LaunchTemplateId=rehearsed.outputs["launch_template_ids"][POOL], Versions=["$Latest"]
            )["LaunchTemplateVersions"][0]["LaunchTemplateData"]
            user_data = base64.b64decode(template["UserData"]).decode()
            role = template["IamInstanceProfile"]["Arn"].rpartition("/")[2]
            answers = ec2_metadata.tree(_metadata_of(instance), user_data, role, KEYS)
            function = sweeps.unpacked(rehearsed, folder / "function")
            common = (rehearsed, metadata, front, hosts, instance, user_data, clients("s3"))
            account = Aws(*common, clients, function)
            metadata.answers = WithTags(answers, account.tags)
            yield account


def _launched(clients: RegionClients, rehearsed: Rehearsed) -> instances.LaunchedInstance:
    """The instance that the pool's group launches when somebody asks it for one."""
    (group,) = rehearsed.outputs["group_names"][POOL]
    clients("autoscaling").set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=1)
    (instance,) = instances.launched(clients, STACK)
    return instance


def _metadata_of(instance: instances.LaunchedInstance) -> dict[str, str]:
    return {
        "ami-id": "ami-0123456789abcdef0",
        "autoscaling/target-lifecycle-state": "InService",
        "instance-id": instance.id,
        "instance-type": instance.type,
        "local-hostname": "ip-169-254-169-15",
        "local-ipv4": "169.254.169.15",
        "mac": MAC,
        f"network/interfaces/macs/{MAC}/device-number": "0",
        f"network/interfaces/macs/{MAC}/local-ipv4s": "169.254.169.15",
        "placement/availability-zone": instance.zone,
        "placement/region": REGION,
    }


@dataclass(frozen=True)
class Signer:
    """Whose keys a request names.

    Attributes:
        role: by the end of its name.
        context: the condition keys of its session.
    """

    keys: Keys
    role: str
    context: dict[str, object]


def signer_of(headers: Mapping[str, str], instance_id: str) -> Signer:
    """A user whose session moto's STS gave to the instance, else the instance itself."""
    named = re.search(r"Credential=([^/]+)/", headers.get("authorization", ""))
    for account in list(get_backend("sts").values()):
        session = account["aws"].get_assumed_role_from_access_key(named[1]) if named else None
        if session is not None:
            keys = Keys(session.access_key_id, session.secret_access_key, session.session_token)
            tag = {f"aws:PrincipalTag/{ACCOUNT_TAG}": account_in(session.session_name)}
            return Signer(keys, f"{POOL}-user", {**tag, "aws:userid": f"AROAUSER:{session.session_name}"})
    return Signer(KEYS, f"{POOL}-instance", {"aws:userid": f"{MOTO_USER}:{instance_id}"})


class Rights:
    """What the instance and its users may do, by the policies registered; moto reads no condition.

    Args:
        rehearsed: what the stack registered.

    Attributes:
        instance_id: who asks, once it is launched.
    """

    def __init__(self, rehearsed: Rehearsed) -> None:
        self._registered = AwsJudge(stack_files.settings_of(STACK), rehearsed)
        self.instance_id = ""

    def hold(self, request: Request, service: str, signer: Signer) -> None:
        """Judge a request as IAM would; raises ``RefusedError``."""
        for action, resource, context in self._asked(request, service):
            if not self._registered.may(signer.role, action, resource, {**signer.context, **context}):
                raise RefusedError(f"{signer.role} may not {action} on {resource} with {context}")

    def _asked(self, request: Request, service: str) -> Sequence[tuple[str, str, Mapping[str, object]]]:
        if service == "s3":
            return self._asked_of_bucket(request)
        if service == "monitoring":
            action = request.headers.get("x-amz-target", "").rpartition(".")[2]
            namespace = json.loads(request.body).get("Namespace", "")
            return [(f"cloudwatch:{action}", "*", {"cloudwatch:namespace": namespace})]
        asked = dict(parse_qsl(request.body.decode(), keep_blank_values=True))
        if service == "sts":
            # what gives users credentials; GetCallerIdentity needs no permission
            actions = ("sts:AssumeRole", "sts:TagSession") if asked["Action"] == "AssumeRole" else ()
            return [(action, asked["RoleArn"], {}) for action in actions]
        if service == "ec2" and asked.get("Action") in ("CreateTags", "DeleteTags"):
            return self._asked_of_tags(asked)
        raise RefusedError(f"{service}: nothing on an idle instance asks it for anything")

    def _asked_of_tags(self, asked: Mapping[str, str]) -> list[tuple[str, str, dict[str, object]]]:
        """The change of tags by which an agent withdraws from a mark, and later takes that back."""
        changed = asked["ResourceId.1"]
        context: dict[str, object] = {
            "ec2:SourceInstanceARN": self._registered.instance(self.instance_id),
            "ec2:InstanceID": changed,
            "aws:TagKeys": [value for name, value in asked.items() if re.fullmatch(r"Tag\.\d+\.Key", name)],
        }
        arn = self._registered.instance(changed)
        return [(f"ec2:{asked['Action']}", arn, context | self._registered.tags(POOL))]

    def _asked_of_bucket(self, request: Request) -> list[tuple[str, str, dict[str, str]]]:
        """The action on bucket or object, and the one on the key that encrypts every object."""
        place = urlsplit(request.target)
        bucket = f"arn:aws:s3:::{request.host.partition('.')[0]}"
        if place.path in ("", "/"):
            query = dict(parse_qsl(place.query))
            return [("s3:ListBucket", bucket, {"s3:prefix": query.get("prefix", "")})]
        reads, writes = ("s3:GetObject", "kms:Decrypt"), ("s3:PutObject", "kms:GenerateDataKey")
        action, on_key = {"GET": reads, "HEAD": reads, "PUT": writes, "POST": writes}[request.method]
        via = {"kms:ViaService": f"s3.{REGION}.amazonaws.com"}
        return [(action, f"{bucket}{unquote(place.path)}", {}), (on_key, self._registered.key, via)]


def _route(endpoint: str, rights: Rights) -> Callable[[Request], Forward]:
    """To moto, which knows buckets by path.

    What is signed by the instance or by a user's session for the very service that is asked, and what these
    may do, goes on.
    """

    def route(request: Request) -> Forward:
        signer = signer_of(request.headers, rights.instance_id)
        try:
            signed = check(request.method, request.target, request.headers, request.body, signer.keys)
        except SignatureError as error:
            raise RefusedError(str(error)) from error
        bucket, dot, _ = request.host.partition(".s3.")
        service = "s3" if dot else request.host.partition(".")[0]
        if (signed.region, signed.service) != (REGION, service):
            raise RefusedError(f"signed for {signed.service} in {signed.region}, sent to {request.host}")
        rights.hold(request, service, signer)
        return Forward(endpoint, f"/{bucket}{request.target}" if dot else request.target)

    return route
