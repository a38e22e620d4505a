"""A function on a timer: its role, log, schedule and alarms."""

import base64
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.alarms import SILENCE_S, alarm
from gpu_fleet_stacks.alicloud.function_roles import FunctionInputs
from gpu_fleet_stacks.alicloud.logs import LogStore, LogStoreArgs
from gpu_fleet_stacks.alicloud.roles import role_with_policy
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.settings import Stack

# The newest Python that Function Compute runs (alicloud_fcv3_function, runtime).
RUNTIME = "python3.12"
# Function Compute calls a function of a file at the root of the archive.
ENTRY_FILE = "index.py"
HANDLER = "index.handler"
FAILURES_PERIOD_S = 60
MEMORY_MIB, CPU, DISK_MIB = 512, 0.5, 512
# The earliest time in a zip, so that content alone decides the bytes.
NO_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class FunctionRow:
    """A scheduled function and its alarms: a row of the table in ``scheduled_functions.py``.

    Attributes:
        label: its own name, such as ``reaper``.
        every_minutes: time between two runs.
        timeout_s: time after which a run is stopped.
        statements: gives the statements of its role's policy.
        metrics: label of an alarm -> the stack's metric that alarms above zero.
        failed_passes: consecutive minutes with failed passes that alarm; None for no such alarm.
        beside: name -> text of further files beside the policy.
    """

    component: str
    label: str
    purpose: str
    entry: str
    every_minutes: int
    timeout_s: int
    statements: Callable[[FunctionInputs], list[policies.Statement]]
    metrics: Mapping[str, str] = field(default_factory=dict)
    failed_passes: int | None = None
    beside: Mapping[str, str] = field(default_factory=dict)


def code(row: FunctionRow, policy: str) -> dict[str, bytes]:
    """Return a function's code: its modules, packages, the policy; equal settings give equal bytes."""
    modules = sweep_archive.modules(row.entry, cloud="alicloud")
    files = {path: (sweep_archive.ROOT / path).read_bytes() for path in modules}
    return {
        **sweep_archive.packages(),
        **files,
        ENTRY_FILE: f"from {row.entry} import handle as handler\n".encode(),
        keys.POLICY: policy.encode(),
        **{name: text.encode() for name, text in row.beside.items()},
    }


class ScheduledFunction(pulumi.ComponentResource):
    """A function that runs once at a time, on a timer, with a role of its own and an encrypted log."""

    function_name: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        row: FunctionRow,
        inputs: FunctionInputs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("gpu-fleet:alicloud:ScheduledFunction", name, None, opts)
        self._name, self._row, self._inputs = name, row, inputs
        self._child = pulumi.ResourceOptions(parent=self)
        days = inputs.stack.logs.retention_days
        log = LogStore(
            f"{name}-log",
            LogStoreArgs(inputs.stack, row.label, inputs.key_id, inputs.key_arn, days),
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
            trigger_config=timer(row.every_minutes),
            description=row.purpose,
            opts=self._child,
        )
        self.function_name = function.function_name
        self.register_outputs({"function_name": function.function_name})

    def _role(self, log: LogStore) -> tuple[alicloud.ram.Role, alicloud.ram.RolePolicyAttachment]:
        stack = self._inputs.stack
        project = f"acs:log:{stack.region}:{stack.account_id}:project/"
        own_log = pulumi.Output.concat(project, log.project_name, "/logstore/*")
        return role_with_policy(
            self._name,
            stack,
            trust=policies.trust("fc.aliyuncs.com"),
            policy_document=policies.document(
                *self._row.statements(self._inputs), policies.allow(["log:PostLogStoreLogs"], own_log)
            ),
            purpose=self._row.purpose,
            parent=self,
        )

    def _function(
        self, log: LogStore, role: alicloud.ram.Role, attachment: alicloud.ram.RolePolicyAttachment
    ) -> alicloud.fc.V3Function:
        row, stack = self._row, self._inputs.stack
        return alicloud.fc.V3Function(
            self._name,
            function_name=self._name,
            description=row.purpose,
            runtime=RUNTIME,
            handler=HANDLER,
            code=alicloud.fc.V3FunctionCodeArgs(zip_file=zipped(code(row, self._inputs.policy))),
            role=role.arn,
            memory_size=MEMORY_MIB,
            cpu=CPU,
            disk_size=DISK_MIB,
            timeout=row.timeout_s,
            instance_concurrency=1,
            internet_access=True,
            environment_variables=_environment(stack),
            log_config=alicloud.fc.V3FunctionLogConfigArgs(
                project=log.project_name,
                logstore=log.store_name,
                log_begin_rule="None",
                enable_instance_metrics=True,
                enable_request_metrics=True,
            ),
            tags=naming.tags(stack.name, stack.owner),
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


class FunctionWithAlarms(pulumi.ComponentResource):
    """A function and its alarms: one row of the table."""

    function_name: pulumi.Output[str]

    def __init__(
        self, name: str, row: FunctionRow, inputs: FunctionInputs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(f"gpu-fleet:alicloud:{row.component}", name, None, opts)
        stack, own, group = inputs.stack, f"{name}-{row.label}", inputs.contact_group
        function = ScheduledFunction(own, row, inputs, pulumi.ResourceOptions(parent=self))
        for label, metric in row.metrics.items():
            alarm(f"{own}-{label}", stack, metric=metric, above="0", contact_group=group, parent=self)
        if row.failed_passes is not None:
            _alarm_of_failures(
                f"{own}-errors",
                stack,
                function.function_name,
                times=row.failed_passes,
                contact_group=group,
                parent=self,
            )
        self.function_name = function.function_name
        self.register_outputs({"function_name": function.function_name})


def declare(
    name: str, rows: Iterable[FunctionRow], inputs: FunctionInputs, opts: pulumi.ResourceOptions
) -> Mapping[str, pulumi.Output[str]]:
    """Declare every function of the table; return label -> the function's name."""
    return {row.label: FunctionWithAlarms(name, row, inputs, opts).function_name for row in rows}


def _alarm_of_failures(
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
