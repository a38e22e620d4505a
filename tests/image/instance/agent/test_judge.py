"""A minute of samples becomes active, idle or unknown."""

from dataclasses import astuple, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Minute, judge
from gpu_fleet_image.instance.agent.sensors.reading import Rates, Session
from tests.image.samples import HOUR_AGO, NOON, gpu, minute, presence, sample, use


def judged(*samples, memory=None):
    return judge(minute(*samples), NOON, memory or JudgeMemory(HOUR_AGO))


SEEN = {
    "process: rsync (7, bob)": presence(watched=["rsync (7, bob)"]),
    "process: python (8, eve)": presence(processes=[use(cpu_cores=0.02)]),
    "process: python (8, eve) waits for its peers, 16 ranks in all": presence(
        processes=[use(ranks=16, peers=2)]
    ),
    "session: ssh bob (9)": presence(processes=[use("ssh", "bob (9)", bytes_per_s=512.0)]),
    "session: ssh bob (9) logged in": presence(processes=[use("ssh", "bob (9)", age_s=59.0)]),
    "session: jupyter kernel 1 of bob, busy": presence([Session("jupyter", "kernel 1 of bob, busy")]),
    "session: terminal eve on pts/0": presence([Session("terminal", "eve on pts/0", 59.0)]),
}
# A rate counts by the mean of the minute.
RATES_OF = {
    "cpu: 0.15 cores": Rates(cpu_cores=0.15 * 12),  # 9 CPU seconds a minute
    "disk: 0.2 MiB/s": Rates(disk_bytes_per_s=12 * 200 * 1024),
    "disk: 1.0 MiB/s": Rates(disk_bytes_per_s=12 * 2**20),
    "network: 0.1 MiB/s": Rates(network_bytes_per_s=12 * 100_000),
    "network: 1.0 MiB/s": Rates(network_bytes_per_s=12 * 2**20),
}
# One kernel in one sample, on any of eight GPUs; of a MIG GPU its power.
KERNELS = {
    f"gpu {place}: utilisation": [gpu(str(index), utilisation=float(index == place)) for index in range(8)]
    for place in (0, 3, 7)
}
ACTIVE = {
    **{reason: sample(presence=seen) for reason, seen in SEEN.items()},
    **{reason: sample(rates) for reason, rates in RATES_OF.items()},
    **{reason: sample(gpus=gpus) for reason, gpus in KERNELS.items()},
}


def test_use_makes_a_minute_active_and_says_why():
    found = {reason: judged(seen) for reason, seen in ACTIVE.items()}

    assert [reason for reason, outcome in found.items() if outcome.reasons != (reason,)] == []
    assert {outcome.state for outcome in found.values()} == {Minute.ACTIVE}
    assert [found[reason].active_fraction for reason in RATES_OF] == pytest.approx([1 / 12] * len(RATES_OF))
    assert {found[reason].seconds_since_activity for reason in RATES_OF} == {0}
    kernel = sample(presence=presence(processes=[use("kernel", bytes_per_s=16 * 1024)]))
    assert judged(kernel).reasons == ("process: python (8, eve)",)
    assert judged(sample(gpus=[gpu(utilisation=None, power_w=300.0, pids=[1])])).state is Minute.ACTIVE


WAITING = [use(), use("kernel"), use("ssh", bytes_per_s=100.0)]  # of a GPU, a notebook, an editor
UNUSED = presence([Session("terminal", "bob on pts/1", 1800.0)])
AT_REST = {
    "nothing": sample(),
    "an unused terminal": sample(presence=UNUSED),
    "daemons": sample(Rates(cpu_cores=0.05, disk_bytes_per_s=20_000, network_bytes_per_s=5_000)),
    "a MIG GPU without processes": sample(gpus=[gpu(utilisation=None)]),
    **{f"{each} waits": sample(presence=presence(processes=[each])) for each in WAITING},
}


def test_what_only_waits_is_no_activity_and_the_idle_time_continues():
    found = {what: judged(*[seen] * 12) for what, seen in AT_REST.items()}

    said = {each: (outcome.state, outcome.seconds_since_activity) for each, outcome in found.items()}
    assert said == {what: (Minute.IDLE, 1800 if "unused" in what else 3600) for what in AT_REST}
    assert {outcome.active_fraction for outcome in found.values()} == {0}


UNKNOWN = {
    "is one of 16 ranks": sample(presence=presence(processes=[use(ranks=16)])),
    "its API answers 403": sample(presence=presence(unknown=["jupyter of bob (7): its API answers 403"])),
    # any of eight GPUs, with no power known or with little
    **{
        f"gpu {place}: ": sample(
            gpus=[gpu(str(index), utilisation=None, pids=[1] * (index == place)) for index in range(8)]
        )
        for place in (0, 7)
    },
    "gpu 3: ": sample(gpus=[gpu("3", utilisation=None, power_w=60.0, pids=[1])]),
}


def test_what_nobody_can_tell_makes_the_minute_unknown_and_says_what():
    found = {why: judged(seen) for why, seen in UNKNOWN.items()}

    assert [why for why, outcome in found.items() if why not in outcome.unknown[0]] == []
    assert {outcome.state for outcome in found.values()} == {Minute.UNKNOWN}


def test_half_of_two_limits_is_as_much_as_the_whole_of_one():
    half = Rates(cpu_cores=0.05, network_bytes_per_s=32 * 1024)

    outcome = judged(*[sample(half)] * 12)

    assert outcome.reasons == ("cpu: 0.05 cores and network: 0.0 MiB/s, together",)


def test_gpus_at_rest_beside_a_busy_cpu_are_active_and_compute_nothing():
    eight = [gpu(str(index)) for index in range(8)]

    idle_gpus = judged(*[sample(Rates(cpu_cores=0.15), gpus=eight)] * 12)
    one_of_eight = judged(*[sample(gpus=[gpu("0", utilisation=80.0), *eight[1:]])] * 12)
    cut = judged(*[sample(Rates(cpu_cores=0.15), gpus=[gpu("0", utilisation=None, pids=[7])])] * 12)

    assert (idle_gpus.state, idle_gpus.gpu_utilisation_percent) == (Minute.ACTIVE, 0.0)
    assert one_of_eight.gpu_utilisation_percent == 10.0
    assert cut.gpu_utilisation_percent is None


def test_what_a_gpu_did_counts_in_each_of_its_samples():
    """One that computed and waits now has computed; one that spins now and computed before does not hang."""
    at_work = sample(gpus=[gpu(utilisation=100.0, power_w=600.0)])
    spins = sample(gpus=[gpu(utilisation=100.0, power_w=60.0)])

    waits_now = judged(*[at_work] * 6, *[sample(gpus=[gpu()])] * 6)
    hung = judged(*[spins] * 12)
    spins_now = judged(*[at_work] * 6, *[spins] * 6)

    assert waits_now.gpu_utilisation_percent == 50.0
    assert len(hung.memory.hung_since) == 1
    assert spins_now.memory.hung_since == ()


def test_sm_activity_is_the_mean_over_gpus_and_samples_that_report_it():
    busy = [
        replace(gpu(str(index)), sm_activity_percent=each) for index, each in enumerate((30.0, 10.0, None))
    ]

    outcome = judged(*[sample(gpus=busy)] * 12)

    assert outcome.gpu_sm_activity_percent == 20.0
    assert judged(sample(gpus=[gpu()])).gpu_sm_activity_percent is None


def test_memory_in_use_alone_is_no_activity_and_the_fullest_is_reported():
    holding = judged(*[sample(gpus=[gpu(pids=[42], used_gib=70.0)])] * 12)
    of_two = judged(sample(gpus=[gpu("0", used_gib=8.0), gpu("1", used_gib=40.0)]))

    assert holding.state is Minute.IDLE
    assert (holding.gpu_memory_used_percent, of_two.gpu_memory_used_percent) == (87.5, 50.0)


def test_a_minute_with_a_failed_sensor_or_without_samples_is_unknown_and_starts_the_idle_time_anew():
    outcome = judged(sample(rates=None, failures=["instance: no such file"]))

    assert outcome.state is Minute.UNKNOWN
    assert outcome.unknown == ("instance: no such file",)
    assert outcome.memory.last_active_at == NOON
    assert judge([], NOON, JudgeMemory(HOUR_AGO)).unknown == ("agent: no sample in this minute",)


def minutes_of_spinning(minutes, power_w):
    memory = JudgeMemory(HOUR_AGO)
    for passed in range(minutes):
        at = NOON + timedelta(minutes=passed)
        spinning = sample(gpus=[gpu(utilisation=100.0, power_w=power_w)])
        samples = [replace(spinning, at=at - timedelta(seconds=5 * back)) for back in reversed(range(12))]
        outcome = judge(samples, at, memory)
        memory = outcome.memory
    return outcome


def test_a_gpu_at_full_utilisation_and_idle_power_is_suspected_after_a_quarter_of_an_hour_and_active_still():
    suspected = minutes_of_spinning(16, power_w=90.0)

    assert (suspected.state, suspected.hung) == (Minute.SUSPECT_HUNG, ("0",))
    assert minutes_of_spinning(14, power_w=90.0).state is Minute.ACTIVE
    assert minutes_of_spinning(30, power_w=650.0).state is Minute.ACTIVE, "it works"
    assert minutes_of_spinning(30, power_w=90.0).seconds_since_activity == 0
    real = judge(minute(sample(gpus=[gpu(utilisation=100.0, power_w=600.0)])), NOON, suspected.memory)
    assert real.memory.hung_since == (), "one minute of real power ends the suspicion"


RATES = st.builds(
    Rates,
    cpu_cores=st.floats(0, 8),
    disk_bytes_per_s=st.floats(0, 2e9),
    network_bytes_per_s=st.floats(0, 2e9),
)
GPUS = st.lists(
    st.builds(
        gpu,
        name=st.sampled_from(["0", "1"]),
        utilisation=st.none() | st.floats(0, 100),
        power_w=st.none() | st.floats(0, 700),
        pids=st.lists(st.integers(1, 9), max_size=2),
    ),
    max_size=2,
)
SESSIONS = st.lists(
    st.builds(Session, st.just("terminal"), st.just("bob on pts/0"), st.floats(0, 7200)), max_size=2
)
SAMPLES = st.builds(
    sample,
    rates=RATES | st.none(),
    gpus=GPUS,
    presence=st.none() | st.builds(presence, sessions=SESSIONS, watched=st.just(()) | st.just(("rsync",))),
    failures=st.lists(st.just("gpu: NVML_ERROR_UNKNOWN"), max_size=1),
)
MINUTES = st.lists(SAMPLES, min_size=1, max_size=12)


def but(samples, place, **changes):
    index = place % len(samples)
    return [*samples[:index], replace(samples[index], **changes), *samples[index + 1 :]]


@given(MINUTES, st.integers(0, 11), RATES)
def test_more_use_never_lengthens_the_idle_time(samples, place, more):
    before = samples[place % len(samples)].rates
    if before is None:
        return
    added = Rates(*(one + other for one, other in zip(astuple(before), astuple(more), strict=True)))

    idle_s, busier_s = (
        judge(each, NOON, JudgeMemory(HOUR_AGO)).seconds_since_activity
        for each in (samples, but(samples, place, rates=added))
    )

    assert busier_s <= idle_s + 1e-6


@given(MINUTES, st.integers(0, 11))
def test_idle_is_said_without_a_reason_or_failure_for_no_longer_than_was_watched(samples, place):
    outcome = judge(samples, NOON, JudgeMemory(HOUR_AGO))
    failed = judge(but(samples, place, rates=None, failures=("instance: gone",)), NOON, JudgeMemory(HOUR_AGO))

    assert (outcome.state is Minute.IDLE) == (not outcome.reasons and not outcome.unknown)
    assert 0 <= outcome.seconds_since_activity <= 3600
    assert failed.seconds_since_activity == 0
