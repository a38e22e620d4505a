"""The check of signatures that stands in for AWS: it takes what botocore signs, and nothing that differs."""

from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.image.stand_ins.signatures import Keys, SignatureError, check

KEYS = Keys("ASIAROLE", "secret", "token")
OTHER, GUESSED = Keys("ASIAOTHER", "secret", "token"), Keys("ASIAROLE", "guessed", "token")
BUCKET = "https://records.s3.us-east-1.amazonaws.com/image/a%20b.tar.gz?versionId=1&x=%2F"
MONITORING = "https://monitoring.us-east-1.amazonaws.com/"


def signed(signer, service, method, url, body=b"", *, keys=KEYS):
    """(method, target, headers, body) of a request that botocore signed."""
    parts = urlsplit(url)
    request = AWSRequest(method, url, {"Host": parts.netloc}, body)
    signer(Credentials(keys.id, keys.secret, keys.token), service, "us-east-1").add_auth(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    return method, f"{parts.path}?{parts.query}".rstrip("?"), headers, body


@pytest.mark.parametrize(
    ("signer", "service", "method", "url", "body"),
    [
        (S3SigV4Auth, "s3", "GET", BUCKET, b""),
        (S3SigV4Auth, "s3", "PUT", BUCKET, b"content"),
        (SigV4Auth, "monitoring", "POST", MONITORING, b"Action=PutMetricData"),
    ],
)
def test_what_botocore_signs_with_the_role_s_keys_is_taken(signer, service, method, url, body):
    assert check(*signed(signer, service, method, url, body), KEYS).service == service


METHOD, TARGET, HEADERS, BODY = signed(S3SigV4Auth, "s3", "PUT", BUCKET, b"content")


@pytest.mark.parametrize(
    ("request_of", "why"),
    [
        (signed(SigV4Auth, "ec2", "POST", MONITORING, keys=OTHER), "signed by ASIAOTHER"),
        (signed(SigV4Auth, "monitoring", "POST", MONITORING, keys=GUESSED), "the signature is not that of"),
        (("GET", TARGET, HEADERS, BODY), "the signature is not that of"),
        ((METHOD, "/image/other", HEADERS, BODY), "the signature is not that of"),
        ((METHOD, TARGET, HEADERS, b"changed"), "another body"),
        (("GET", "/", {"host": "records.s3.us-east-1.amazonaws.com"}, b""), "not signed"),
    ],
    ids=["keys", "secret", "method", "path", "body", "unsigned"],
)
def test_what_is_not_signed_so_is_refused(request_of, why):
    with pytest.raises(SignatureError, match=why):
        check(*request_of, KEYS)
