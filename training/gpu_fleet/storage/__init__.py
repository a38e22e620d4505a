"""Object stores: object_store.py for S3 and OSS, oss.py for the client and the keys of OSS."""
