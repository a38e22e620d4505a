"""Keys of a stack's records in its records bucket, and names of the files beside a function's policy."""

LEDGER = "reaper"  # of the bucket: every record's key begins with it
POLICY = "policy.json"  # users' commands read it; a function has a copy in its archive
ROSTER = "roster.json"  # e-mail addresses, which only the sweep may read
ACCOUNTS = "accounts.json"  # the accounts that instances make
ACCOUNT_FOLDER = "accounts"  # of the function that reads a directory
ACCOUNT_NUMBERS = f"{ACCOUNT_FOLDER}/numbers.json"
QUEUE_JOBS = "queue/jobs.json"  # the queue controller's report of all jobs
QUEUE_USE = "queue/use"  # a day's object each: the instances' time by job
QUEUE_NEED = "capacity/queue.json"  # the queue controller's request to the mover
MOVER_STATE = "capacity/state.json"  # it holds the reason where no instance is launched
GROWTH = "capacity/growth.json"  # the money left for more instances
DIRECTORY_FILE = "directory.json"
BUILDS_FILE = "builds.json"


def stored(key: str) -> str:
    """Return the whole key of a record in its bucket."""
    return f"{LEDGER}/{key}"
