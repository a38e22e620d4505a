"""A function on a timer: its role, its log, its schedule."""

import base64
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.alarms import SILENCE_S
from gpu_fleet_stacks.alicloud.logs import LogStore, LogStoreArgs
from gpu_fleet_stacks.alicloud.roles import role_with_policy
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

# The newest Python that Function Compute runs (alicloud_fcv3_function, runtime).
RUNTIME = "python3.12"
MEMORY_MIB, CPU, DISK_MIB = 512, 0.5, 512
FAILURES_PERIOD_S = 60
# The earliest time in a zip, so that content alone decides the bytes.
NO_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ScheduledFunctionArgs:
    """Inputs of a function on a timer.

    Attributes:
        label: name of the function, such as ``reaper``.
        handler: ``module.function`` in the archive.
        files: path in the archive -> content.
        every_minutes: time between two runs.
        timeout_s: time after which a run is stopped.
        statements: statements of its role's policy.
    """

    stack: Stack
    label: str
    purpose: str
    handler: str
    files: Mapping[str, bytes]
    every_minutes: int
    timeout_s: int
    statements: list[policies.Statement]
    key_id: pulumi.Input[str]
    key_arn: pulumi.Input[str]


class ScheduledFunction(pulumi.ComponentResource):
    """A function that runs once at a time, on a timer, with a role of its own and an encrypted log."""

    function_name: pulumi.Output[str]

    def __init__(
        self, name: str, args: ScheduledFunctionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("gpu-fleet:alicloud:ScheduledFunction", name, None, opts)
        self._name, self._args = name, args
        self._child = pulumi.ResourceOptions(parent=self)
        log = LogStore(
            f"{name}-log",
            LogStoreArgs(args.stack, args.label, args.key_id, args.key_arn, args.stack.logs.retention_days),
            self._child,
        )
        role, attachment = self._role(log)
        function = self._function(log, role, attachment)
        alicloud.fc.V3ConcurrencyConfig(
            name, function_name=function.function_name, reserved_concurrency=1, opts=self._child
        )
        alicloud.fc.V3Trigger(
            name,
            function_name=function.function_name,
            trigger_name=name,
            trigger_type="timer",
            qualifier="LATEST",
            trigger_config=timer(args.every_minutes),
            description=args.purpose,
            opts=self._child,
        )
        self.function_name = function.function_name
        self.register_outputs({"function_name": function.function_name})

    def _role(self, log: LogStore) -> tuple[alicloud.ram.Role, alicloud.ram.RolePolicyAttachment]:
        stack = self._args.stack
        project = f"acs:log:{stack.region}:{stack.account_id}:project/"
        own_log = pulumi.Output.concat(project, log.project_name, "/logstore/*")
        return role_with_policy(
            self._name,
            stack,
            trust=policies.trust("fc.aliyuncs.com"),
            policy_document=policies.document(
                *self._args.statements, policies.allow(["log:PostLogStoreLogs"], own_log)
            ),
            purpose=self._args.purpose,
            parent=self,
        )

    def _function(
        self, log: LogStore, role: alicloud.ram.Role, attachment: alicloud.ram.RolePolicyAttachment
    ) -> alicloud.fc.V3Function:
        args = self._args
        return alicloud.fc.V3Function(
            self._name,
            function_name=self._name,
            description=args.purpose,
            runtime=RUNTIME,
            handler=args.handler,
            code=alicloud.fc.V3FunctionCodeArgs(zip_file=zipped(args.files)),
            role=role.arn,
            memory_size=MEMORY_MIB,
            cpu=CPU,
            disk_size=DISK_MIB,
            timeout=args.timeout_s,
            instance_concurrency=1,
            internet_access=True,
            environment_variables=_environment(args.stack),
            log_config=alicloud.fc.V3FunctionLogConfigArgs(
                project=log.project_name,
                logstore=log.store_name,
                log_begin_rule="None",
                enable_instance_metrics=True,
                enable_request_metrics=True,
            ),
            tags=naming.tags(args.stack.name, args.stack.owner),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[attachment]),
        )


def _environment(stack: Stack) -> dict[str, str]:
    """Return the variables by which the functions' programs find their stack."""
    return {
        "GPU_FLEET_LEDGER_URI": f"oss://{stack.bucket_name('records')}/reaper",
        "GPU_FLEET_ACCOUNT_ID": stack.account_id,
        # functions share the region's inner network; the public name refuses newer accounts
        "GPU_FLEET_ALICLOUD_OSS_ENDPOINT": f"https://s3.oss-{stack.region}-internal.aliyuncs.com",
    }


def timer(every_minutes: int) -> str:
    """Return a timer's configuration (www.alibabacloud.com/help/en/functioncompute/fc/timing-trigger)."""
    return json.dumps({"cronExpression": f"@every {every_minutes}m", "enable": True, "payload": "{}"})


def zipped(files: Mapping[str, bytes]) -> str:
    """Return a zip in base64; equal content gives equal text, whatever clock and disk are."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, date_time=NO_TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, files[path])
    return base64.b64encode(buffer.getvalue()).decode()


def alarm_of_failures(
    name: str,
    stack: Stack,
    function_name: pulumi.Output[str],
    *,
    times: int,
    contact_group: pulumi.Input[str],
    parent: pulumi.Resource,
) -> alicloud.cms.Alarm:
    """Notify the stack's contacts, at most once a day, that a function fails again and again.

    Function Compute counts failures by region and function; its metrics have periods of a minute and the
    statistics ``Value`` (help.aliyun.com/en/functioncompute/fc/user-guide/monitoring-data).

    Args:
        name: the alarm's name, logical and physical.
        times: consecutive periods with failures.
    """
    which = function_name.apply(lambda made: json.dumps([{"region": stack.region, "functionName": made}]))
    return alicloud.cms.Alarm(
        name,
        name=name,
        project="acs_fc",
        metric="FunctionFunctionErrors",
        metric_dimensions=which,
        contact_groups=[contact_group],
        period=FAILURES_PERIOD_S,
        silence_time=SILENCE_S,
        enabled=True,
        escalations_critical=alicloud.cms.AlarmEscalationsCriticalArgs(
            statistics="Value", comparison_operator=">", threshold="0", times=times
        ),
        tags=naming.tags(stack.name, stack.owner),
        opts=pulumi.ResourceOptions(parent=parent),
    )
