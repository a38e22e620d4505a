"""The Alibaba Cloud half of the stacks room; it never imports the AWS half."""
