"""May it exist: rules over declared resources, as a CrossGuard pack and as plain functions."""
