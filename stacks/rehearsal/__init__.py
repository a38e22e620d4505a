"""The program that `pulumi up` runs, unchanged, in this process against moto: no account, no engine."""
