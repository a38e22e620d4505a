"""Lowest floor of the stacks, on which every room stands: exceptions, names and tags, whole files, tables."""
