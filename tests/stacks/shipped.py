"""The stacks that the repository ships, by name: a checkout may hold other files beside them."""

SHIPPED = ("alicloud-dev", "alicloud-prod", "aws-dev", "aws-prod", "local")
