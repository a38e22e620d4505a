"""Exit statuses of `train start` and `launch`: one table for the systemd unit, the queue and users.

| status | meaning | what to do |
|---|---|---|
| 0 | finished | nothing |
| 85 | saved and stopped for a notice; under torchrun a rank ends with 0 | run it again |
| 2, 65 | failed for good: usage, configuration, data, memory, a loss that is no number | nothing |
| any other | failed, perhaps for a passing reason: a lost rank, a silent bucket | run it again, a few times |

65 and 75 are EX_DATAERR and EX_TEMPFAIL of sysexits.h. HTCondor's manual proposes 85 for a job that has saved
a checkpoint and asks to be started again (`checkpoint_exit_code`,
https://htcondor.readthedocs.io/en/latest/users-manual/self-checkpointing-applications.html).
"""

FINISHED = 0
USAGE = 2  # click's own status
FAILED_FOR_GOOD = 65
FAILED_PERHAPS = 75
STOPPED = 85


def of_process(status: int) -> int:
    """Return the status of a process as a shell reports it; below 0 a signal has ended the process."""
    return status if status >= 0 else 128 - status
