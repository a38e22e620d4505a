"""What the exit status of `train` and `launch` says: one table for the unit, the queue and users.

| status | meaning | what to do |
|---|---|---|
| 0 | finished | nothing |
| 85 | saved and stopped for a notice; under torchrun a rank ends with 0 | run it again |
| 2, 65 | failed for good: usage, configuration, data, memory, a loss that is no number | nothing |
| any other | perhaps for a reason that passes: a lost rank, a silent bucket | run it again, a few times |

65 and 75 are EX_DATAERR and EX_TEMPFAIL of sysexits.h; 85 is what HTCondor's manual proposes for a job that
has saved a checkpoint and wants to be started again (`checkpoint_exit_code`,
https://htcondor.readthedocs.io/en/latest/users-manual/self-checkpointing-applications.html).
"""

FINISHED = 0
USAGE = 2  # of click
FAILED_FOR_GOOD = 65
FAILED_PERHAPS = 75
STOPPED = 85
