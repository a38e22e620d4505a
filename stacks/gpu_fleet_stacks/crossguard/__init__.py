"""Rules over declared resources, as a CrossGuard policy pack and as plain functions."""
