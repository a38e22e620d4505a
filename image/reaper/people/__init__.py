"""People's commands: who goes when and why, keep a machine, lift a freeze, what a month saved."""
