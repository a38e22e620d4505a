"""Creators of AWS resource types in moto: one small function per type, one module per service."""

from gpu_fleet_stacks.rehearsal.aws_resources import (
    autoscaling,
    budgets,
    cloudtrail,
    cloudwatch,
    ec2_launch_template,
    ec2_network,
    ec2_security_groups,
    events,
    file_systems,
    iam,
    kms,
    lambda_functions,
    messages,
    s3,
    secrets_manager,
    ssm,
)

CREATORS = {
    **autoscaling.CREATORS,
    **budgets.CREATORS,
    **cloudtrail.CREATORS,
    **cloudwatch.CREATORS,
    **ec2_launch_template.CREATORS,
    **ec2_network.CREATORS,
    **ec2_security_groups.CREATORS,
    **events.CREATORS,
    **file_systems.CREATORS,
    **iam.CREATORS,
    **kms.CREATORS,
    **lambda_functions.CREATORS,
    **messages.CREATORS,
    **s3.CREATORS,
    **secrets_manager.CREATORS,
    **ssm.CREATORS,
}
