"""The agent on each machine: what it looks at, what a minute was, where that goes; how the machine leaves."""
