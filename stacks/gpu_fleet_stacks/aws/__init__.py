"""The AWS half of the stacks room; it never imports the Alibaba Cloud half."""
