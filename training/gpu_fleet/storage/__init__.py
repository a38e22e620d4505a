"""An object store: object_store.py any of the two, oss.py what Alibaba Cloud's wants otherwise."""
