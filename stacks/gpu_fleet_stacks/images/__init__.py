"""Image builds of a stack on its cloud: start, follow, promote, roll back."""
