"""Health checks of an instance: pure functions of what is expected and what was probed."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpu_fleet_image.core.instance_file import Expected

# Errors after which a GPU needs a reset or a replacement, from NVIDIA's catalogue
# (docs.nvidia.com/deploy/xid-errors): double-bit ECC, halted microcontroller, failed row remapping, NVLink,
# fallen off the bus, uncontained ECC, and a system processor (GSP) that stopped answering.
FATAL_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
# NVLink of Blackwell: the driver's line itself contains Fatal or Nonfatal (the same catalogue, 144 to 150).
_NVLINK_XIDS = range(144, 151)
_FATAL = re.compile(r"\bFatal\b")
# "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": a GPU's last line counts.
_RECOVERY_XID = 154
_RECOVERY = re.compile(r" to 0x[0-9a-f]+ \(([^)]+)\)")
_NO_RECOVERY = "None"
XID = re.compile(r"NVRM: Xid \(([^)]*)\): ([0-9]+)")
# Types are named by marketing GiB; the driver reserves some for itself and for ECC.
_SMALLEST_MEMORY_SHARE = 0.9
# Copies inside one GPU: if it is this much slower than the instance's fastest, it throttles or has a fault.
_SMALLEST_BANDWIDTH_SHARE = 0.8
# Share of its memory's peak by clock and width, since all GPUs of an instance may throttle alike (a power
# brake). Half is a choice, well below what healthy memory of any kind copies: no healthy instance shall be
# replaced.
_SMALLEST_PEAK_SHARE = 0.5
# CUDA_ERROR_SYSTEM_NOT_READY: the fabric manager is not up yet (docs.nvidia.com/datacenter/tesla/
# fabric-manager-user-guide, "CUDA Initialization Failure")
NOT_READY = "Error 802"


@dataclass(frozen=True)
class ProbedGpu:
    """Properties of one GPU as probed.

    Attributes:
        name: index and bus address.
        uncorrected_ecc_errors: since boot; None without ECC.
        inactive_nvlinks: links that the GPU has and that are down.
        copy_gib_per_s: memory bandwidth of a copy; None if it was not measured.
        peak_gib_per_s: limit by the memory's clock and width; None if unknown, or partitioned by MIG.
        slowed_by: reasons for reduced clocks now.
        fabric_to_come: progress of its fabric manager; empty if that is done, or without such a fabric.
        fabric_problem: why its part of the fabric failed; empty if it did not.
        cuda_problem: why CUDA could run nothing on it; empty if it could, or was not tried.
    """

    name: str
    memory_gib: float
    uncorrected_ecc_errors: int | None = None
    inactive_nvlinks: int = 0
    copy_gib_per_s: float | None = None
    peak_gib_per_s: float | None = None
    slowed_by: tuple[str, ...] = ()
    fabric_to_come: str = ""
    fabric_problem: str = ""
    cuda_problem: str = ""


@dataclass(frozen=True)
class ProbedInstance:
    """Properties of the instance as probed.

    Attributes:
        gpus: every GPU that answers.
        gpus_to_come: GPUs on the PCI bus that a driver of this image may still bring up.
        efa_interfaces: Elastic Fabric Adapters with a driver, and up.
        erdma_interfaces: elastic RDMA interfaces with a driver, and up.
        kernel_log: since boot.
        driver_problem: why NVML did not answer; empty if it did.
        metadata_problem: why the metadata service is not closed to users; empty if it is.
        credentials_problem: why users get no credentials; empty if they do.
    """

    gpus: tuple[ProbedGpu, ...] = ()
    gpus_to_come: int = 0
    efa_interfaces: int = 0
    erdma_interfaces: int = 0
    kernel_log: str = ""
    driver_problem: str = ""
    metadata_problem: str = ""
    credentials_problem: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        ok: True if the instance may be used.
        waiting: not ok yet, but it may become so by itself.
        count: number of GPUs, for the check that counts them.
    """

    check: str
    ok: bool
    detail: str
    waiting: bool = False
    count: int | None = None


def gpu_count(expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that there are as many GPUs as the type has."""
    why = f": {seen.driver_problem}" if seen.driver_problem else ""
    ok = len(seen.gpus) == expected.gpus
    waiting = len(seen.gpus) < expected.gpus <= seen.gpus_to_come
    return CheckResult(
        "gpu_count", ok, f"{len(seen.gpus)} of {expected.gpus} GPUs{why}", waiting, len(seen.gpus)
    )


def gpu_memory(expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that each GPU has the memory of its type."""
    least = expected.gpu_memory_gib * _SMALLEST_MEMORY_SHARE
    small = [f"GPU {gpu.name} has {gpu.memory_gib:.1f} GiB" for gpu in seen.gpus if gpu.memory_gib < least]
    return CheckResult("gpu_memory", not small, _detail(small, f"at least {least:.1f} GiB each"))


def ecc(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that there is no memory error that ECC could not correct."""
    bad = [f"GPU {gpu.name}: {gpu.uncorrected_ecc_errors}" for gpu in seen.gpus if gpu.uncorrected_ecc_errors]
    return CheckResult("ecc", not bad, _detail(bad, "no uncorrected error since boot"))


def nvswitch(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that every GPU is in the fabric of its NVSwitches; a single GPU needs none."""
    if len(seen.gpus) == 1:
        return CheckResult("nvswitch", ok=True, detail="one GPU, nothing to link it to")
    failed = [f"GPU {gpu.name}: {gpu.fabric_problem}" for gpu in seen.gpus if gpu.fabric_problem]
    to_come = [f"GPU {gpu.name}: {gpu.fabric_to_come}" for gpu in seen.gpus if gpu.fabric_to_come]
    detail = _detail(failed + to_come, "every fabric complete")
    return CheckResult("nvswitch", not failed + to_come, detail, waiting=bool(to_come) and not failed)


def cuda(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that each GPU runs something: NVML also answers for one that a dead fabric manager blocks."""
    bad = [f"GPU {gpu.name}: {gpu.cuda_problem}" for gpu in seen.gpus if gpu.cuda_problem]
    waiting = bool(bad) and all(NOT_READY in gpu.cuda_problem for gpu in seen.gpus if gpu.cuda_problem)
    return CheckResult("cuda", not bad, _detail(bad, "every GPU that was asked ran a copy"), waiting)


def nvlink(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that every link is up, for which a fabric manager may need time; a single GPU needs none."""
    if len(seen.gpus) == 1:
        return CheckResult("nvlink", ok=True, detail="one GPU, nothing to link it to")
    down = [f"GPU {gpu.name}: {gpu.inactive_nvlinks} down" for gpu in seen.gpus if gpu.inactive_nvlinks]
    return CheckResult("nvlink", not down, _detail(down, "no link down"), waiting=bool(down))


def xid(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that there was no error since boot after which a GPU is unusable."""
    fatal = _fatal_xids(seen.kernel_log)
    return CheckResult("xid", not fatal, _detail(fatal, "no fatal Xid since boot"))


def _fatal_xids(kernel_log: str) -> list[str]:
    """Return errors after which a GPU needs a reset or a replacement, each GPU's once, in bus order."""
    fatal: set[tuple[str, int, str]] = set()
    actions: dict[str, str] = {}
    for line in kernel_log.splitlines():
        # where a line begins: other messages hold words of users, such as names of control groups
        if (error := XID.match(line)) is None:
            continue
        bus, code, text = error[1], int(error[2]), line[error.end() :]
        if code == _RECOVERY_XID:
            action = _RECOVERY.search(text)
            actions[bus] = action[1] if action else "an action that the driver does not name"
        elif code in FATAL_XIDS or (code in _NVLINK_XIDS and _FATAL.search(text)):
            fatal.add((bus, code, ""))
    fatal |= {(bus, _RECOVERY_XID, f" ({what})") for bus, what in actions.items() if what != _NO_RECOVERY}
    return [f"Xid {code}{what} on {bus}" for bus, code, what in sorted(fatal)]


def bandwidth(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that no GPU is much slower than the fastest of the instance, and not all of them are slow."""
    measured = [(gpu, gpu.copy_gib_per_s) for gpu in seen.gpus if gpu.copy_gib_per_s is not None]
    least = max((speed for _, speed in measured), default=0.0) * _SMALLEST_BANDWIDTH_SHARE
    slow = [
        _speed(gpu, speed)
        for gpu, speed in measured
        if speed < max(least, (gpu.peak_gib_per_s or 0.0) * _SMALLEST_PEAK_SHARE)
    ]
    alike = "all are slow alike: " if slow and len(slow) == len(measured) > 1 else ""
    detail = alike + _detail(slow, f"{len(measured)} measured, at least {least:.0f} GiB/s")
    return CheckResult("bandwidth", not slow, detail)


def _speed(gpu: ProbedGpu, speed: float) -> str:
    peak = f" of {gpu.peak_gib_per_s:.0f}" if gpu.peak_gib_per_s else ""
    held = f" ({', '.join(gpu.slowed_by)})" if gpu.slowed_by else ""
    return f"GPU {gpu.name}: {speed:.0f}{peak} GiB/s{held}"


def fabric(expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that network interfaces for collectives have a driver and are up, which may take a while."""
    rows = (
        ("EFA", seen.efa_interfaces, expected.efa_interfaces),
        ("eRDMA", seen.erdma_interfaces, expected.erdma_interfaces),
    )
    few = [f"{have} of {wanted} {kind} interfaces" for kind, have, wanted in rows if have < wanted]
    return CheckResult("fabric", not few, _detail(few, "every interface there"), waiting=bool(few))


def metadata(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that no user reaches the metadata service, and so root's role; its rules may still be loaded."""
    problem = seen.metadata_problem
    return CheckResult("metadata", not problem, problem or "closed to users", waiting=bool(problem))


def user_credentials(_expected: Expected, seen: ProbedInstance) -> CheckResult:
    """Check that users get credentials, which jobs need to save; a new role takes the cloud some time."""
    problem = seen.credentials_problem
    detail = problem or "users get the user role's"
    return CheckResult("user_credentials", not problem, detail, waiting=bool(problem))


CHECKS: tuple[Callable[[Expected, ProbedInstance], CheckResult], ...] = (
    gpu_count,
    gpu_memory,
    ecc,
    nvswitch,
    cuda,
    nvlink,
    xid,
    bandwidth,
    fabric,
    metadata,
    user_credentials,
)


def judge(expected: Expected, seen: ProbedInstance) -> tuple[CheckResult, ...]:
    """Return the results of all checks, in an operator's order."""
    return tuple(check(expected, seen) for check in CHECKS)


def judge_running(expected: Expected, seen: ProbedInstance) -> tuple[CheckResult, ...]:
    """Return the results of the checks that hold at any time, whatever runs on the GPUs."""
    return tuple(check(expected, seen) for check in (gpu_count, ecc, xid, metadata))


def _detail(problems: Iterable[str], otherwise: str) -> str:
    return "; ".join(problems) or otherwise
