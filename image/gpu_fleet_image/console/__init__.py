"""``gpu-fleet``: one command for users and platform teams. It needs only click and the standard library."""

INTERRUPTED = 128 + 2  # a shell's exit code of a process that Ctrl-C (SIGINT, 2) ended
