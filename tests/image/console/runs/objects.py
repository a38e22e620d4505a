"""boto3's client of S3, as far as a bucket of runs needs it."""

from datetime import UTC, datetime
from io import BytesIO

from botocore.exceptions import ClientError


class Objects:
    """Some objects: key -> content and when it was written. What is not there is answered with one code."""

    def __init__(self, objects=(), absent="NoSuchKey"):
        self.objects, self.absent = dict(objects), absent

    def put_object(self, *, Key, Body, **_):  # noqa: N803 - boto3's own names
        self.objects[Key] = Body, datetime.now(UTC)
        return {}

    def get_object(self, *, Key, **_):  # noqa: N803
        if Key not in self.objects:
            raise ClientError({"Error": {"Code": self.absent, "Message": "no"}}, "GetObject")
        return {"Body": BytesIO(self.objects[Key][0])}

    def list_objects_v2(self, *, Prefix, **_):  # noqa: N803
        found = [(key, at) for key, (_, at) in self.objects.items() if key.startswith(Prefix)]
        return {"Contents": [{"Key": key, "LastModified": at} for key, at in found]}
