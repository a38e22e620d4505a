"""Object stores: object_store.py for S3 and OSS, oss.py for the client of OSS, rrsa.py for keys of pods."""
