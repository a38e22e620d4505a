"""The stacks room: settings, catalog and the two clouds' components."""
