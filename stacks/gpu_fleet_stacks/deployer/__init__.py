"""What whoever deploys a stack may do: policy documents, from what its program registers."""
