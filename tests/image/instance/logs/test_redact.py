"""What looks like a secret leaves no instance; what does not, does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.instance.logs.redact import LONGEST_KEY_LINES, MASK, MOST_SOURCES, Redactor

SECRET = "wJalrXUtnFEMI" + "K7MDENGbPxRfiCYEXAMPLEKEY"
JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
# as the packer of runs knows them too (gpu_fleet_jobs/submitted/included.py)
KEYS = [
    f"{prefix}{'a1B2c3D4e5F6g7H8' * 2}"
    for prefix in ("nvapi-", "wandb_v1_", "dckr_pat_", "pypi-AgEI", "sk-ant-", "glpat-", "github_pat_")
]
SLACK = "https://hooks.slack.com/" + "services/T01234567/B01234567/abcdefghijABCDEFGHIJ0123"
SECRETS = [
    ("using AKIA" + "IOSFODNN7EXAMPLE now", "AKIA" + "IOSFODNN7EXAMPLE"),
    ("temporary ASIA" + "IOSFODNN7EXAMPLE", "ASIA" + "IOSFODNN7EXAMPLE"),
    ("LTAI" + "5tDkq7nXnKcJ6gYQx1Zk", "LTAI" + "5tDkq7nXnKcJ6gYQx1Zk"),
    (f"aws_secret_access_key = {SECRET}", SECRET),
    (f"AWS_SECRET_ACCESS_KEY={SECRET}", SECRET),
    (f'{{"SecretAccessKey": "{SECRET}"}}', SECRET),
    (f"ALIBABA_CLOUD_ACCESS_KEY_SECRET={SECRET}", SECRET),
    (f"Authorization: Bearer {SECRET}", SECRET),
    ("Authorization: Basic " + "dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
    ("clone https://ada:hunter2@git.example/x.git", "hunter2"),
    ("postgres://ada:p%40ss:word@db/x", "p%40ss:word"),
    ("redis://:hunter2@cache:6379", "hunter2"),
    ("password: hunter2", "hunter2"),
    ('"db_password": "hunter2 and more"', "hunter2 and more"),
    ("PGPASSWORD='hunter2'", "hunter2"),
    ("login --password hunter2 --user ada", "hunter2"),
    ("api_key=0123456789abcdef", "0123456789abcdef"),
    ("WANDB_API_KEY=0123456789abcdef0123", "0123456789abcdef0123"),
    ("HF_TOKEN=abcdefghij0123456789", "abcdefghij0123456789"),
    ("hf_" + "abcdefghijABCDEFGHIJ0123", "hf_" + "abcdefghijABCDEFGHIJ0123"),
    ("ghp_" + "abcdefghijABCDEFGHIJ0123456789abcdef", "ghp_" + "abcdefghij"),
    ("xoxb-" + "123456789012-abcdefghijkl", "xoxb-" + "123456789012"),
    *((f"with {key}", key) for key in KEYS),
    ("clone https://ada:hunter2@hunter3@git.example/x.git", "hunter3"),
    (f"cookie {JWT}", JWT),
    ("https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature=0123456789abcdef", "0123456789abcdef"),
    (f'secret_key = "{SECRET}', SECRET),
    (f"secret_key = '{SECRET} and more", f"{SECRET} and more"),
    ('"password": "one\ntwo', "two"),
    (f"Authorization: Token {SECRET}", SECRET),
    ('{"Authorization": "token 0123456789abcdef0123"}', "0123456789abcdef0123"),
    *((SLACK, part) for part in ("T01234567/B0", "ABCDEFGHIJ0123")),
    ("https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=" + "693a91f6-7xxx-4bc4-97a0", "693a91f6"),
    ("maps AIza" + "SyA0123456789abcdefghijABCDEFGHIJ-_", "SyA0123456789"),
    ("grafana glsa_" + "abcdefghijABCDEFGHIJ0123456789ab_0123abcd", "abcdefghijABCDEFGHIJ"),
    ("Protocol=https;AccountKey=" + "abcd/efgh+ijkl0123==;Suffix=x", "abcd/efgh+ijkl0123=="),
    ("wandb login " + "0123456789abcdef" * 2 + "01234567", "0123456789abcdef"),
    ("wandb login --relogin " + "0123456789abcdef" * 2 + "01234567", "0123456789abcdef"),
    ("wandb.login(key='" + "0123456789abcdef" * 2 + "01234567')", "0123456789abcdef"),
    ("https://b.oss.aliyuncs.com/k?Expires=1&Signature=0123456789abcdef%3D", "0123456789abcdef"),
]


def test_a_secret_is_made_unreadable():
    made = {text: Redactor()("unit 1", text) for text, _ in SECRETS}

    assert [text for text, secret in SECRETS if secret in made[text] or MASK not in made[text]] == []


NO_SECRETS = [
    "step=100 loss=2.31 tokens_per_s=51234 tokens: 4096 max_token=128 pad_token=<pad>",
    "eos_token: <|endoftext|>",
    "event=run-started account=ada run=20261125-digits sha256=" + "0" * 64,
    "s3://gpu-fleet-dev-data-123456789012/runs/words/ada/dev",
    "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/x.html?page=2",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.",
    "mail to ada@example.org at 10:15:00",
    "basic training of 3 epochs; the bearer of bad news",
    "rank 3: secretly slow",
    "the authorization: token by token; wandb login failed",
    "posted to hooks.slack.com; see https://slack.com/help",
    "wandb: run at https://wandb.ai/ada/digits/runs/0123456789abcdef" + "0123456789abcdef01234567",
]


def test_what_is_no_secret_stays():
    assert [made for text in NO_SECRETS if (made := Redactor()("unit 1", text)) != text] == []


KEY = [
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "b3BlbnNzaC1rZXktdjEA",
    "AAAAB3NzaC1yc2E",
    "-----END OPENSSH PRIVATE KEY-----",
]


def test_a_private_key_is_redacted_where_each_of_its_lines_is_an_entry_and_where_some_are_one():
    redact, whole = Redactor(), "\n".join(KEY)

    made = [redact("unit 1", line) for line in ["before", *KEY, "after"]]

    assert made == ["before", MASK, MASK, MASK, MASK, "after"]
    assert redact("unit 1", f"a {whole} and {whole} b") == f"a {MASK} and {MASK} b"


def test_a_key_that_never_ends_hides_no_more_than_the_longest():
    redact = Redactor()
    redact("unit 1", KEY[0])

    made = [redact("unit 1", "step") for _ in range(LONGEST_KEY_LINES + 1)]

    assert made[:-2] == [MASK] * (LONGEST_KEY_LINES - 1)
    assert made[-1] == "step"


def test_sources_within_a_key_are_told_apart_and_not_remembered_without_end():
    redact = Redactor()

    for number in range(MOST_SOURCES + 50):
        redact(f"unit {number}", KEY[0])

    assert redact(f"unit {MOST_SOURCES + 49}", KEY[1]) == MASK
    assert redact("unit 0", KEY[1]) == KEY[1]
    assert redact("another", "step 4") == "step 4"
    assert redact(f"unit {MOST_SOURCES}", KEY[1]) == MASK, "another's lines between end no key"


@given(st.text(max_size=300))
def test_it_takes_any_text(text):
    assert isinstance(Redactor()("unit 1", text), str)


PARTS = [
    *("a", "a:", "eyJ", "token", "://", "x-", "secret", '"', "-----BEGIN ", "password ", "a.b-", "AIza"),
    *("wandb login ", "authorization: ", 'secret="', "hooks.slack.com/services/"),
]


@pytest.mark.timeout(60)  # milliseconds, unless a pattern tries again and again
def test_no_text_takes_long():
    for part in PARTS:
        assert Redactor()("unit 1", (part * 100_000)[:100_000]), part
