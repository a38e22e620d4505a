"""How each AWS resource type comes to stand in moto: one small function per type, one module per service."""

from stacks.rehearsal.aws_resources import ec2_network, ec2_security_groups

CREATORS = {**ec2_network.CREATORS, **ec2_security_groups.CREATORS}
