"""Mask secrets that programs print by mistake, before a line leaves the instance.

It looks only for known shapes: a secret that looks like any other word is not found. Do not rely on it.
"""

import re

MASK = "[redacted]"
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# A key of 16,384 bits in PEM has some 200 lines; a key without an end masks no more lines than this.
LONGEST_KEY_LINES = 250
MOST_SOURCES = 1_000  # sources that can be within a key at once
# Quoted: to the closing quote or the end of the text; otherwise to the end of the word.
_VALUE = r"(\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|[^\s,;&\"']+)"
_ASSIGNED = r"[\"']?\s{0,4}[=:]\s{0,4}"
_NAME = (
    r"(?:secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key(?![_-]?id)|account[_-]?key)[\w-]{0,30}"
)
# Patterns and their replacements. Each pattern begins with a word, and every later repetition is bounded. The
# beginning of a name (AWS_ of AWS_SECRET_ACCESS_KEY) is not matched and stays.
SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    # keys of AWS and of Alibaba Cloud, by their ids
    (re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\b(?:LTAI|STS\.)[A-Za-z0-9]{12,64}\b"), MASK),
    # tokens with a known prefix: GitHub, GitLab, Hugging Face, Slack, OpenAI, Anthropic, Grafana, NVIDIA,
    # Weights and Biases, Docker, PyPI, Google; JSON Web Tokens
    (
        re.compile(
            r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|xox[abprs]-|sk-|gls[ac]_|nvapi-|wandb_v1_|dckr_pat_|pypi-AgEI)"
            r"[A-Za-z0-9_-]{16,255}"
        ),
        MASK,
    ),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{35}"), MASK),
    # webhooks of Slack and of WeCom: the address is the secret
    (re.compile(r"(\bhooks\.slack\.com/[a-z]{1,16}/)[A-Za-z0-9/_-]{8,255}"), rf"\1{MASK}"),
    (re.compile(r"(?i)(\bwebhook/send\?key=)[A-Za-z0-9-]{8,255}"), rf"\1{MASK}"),
    # a key as an argument of wandb
    (
        re.compile(r"(?i)(\bwandb(?:\.|\s{1,4})login[\s(\"'=\w-]{1,40}?)\b[a-z0-9_-]{0,40}[0-9a-f]{40}\b"),
        rf"\1{MASK}",
    ),
    (re.compile(r"\beyJ[\w-]{8,4096}\.[\w-]{8,8192}\.[\w-]{8,4096}"), MASK),
    (
        re.compile(
            r"(?i)\b(bearer|basic|authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?token)(\s{1,4})[A-Za-z0-9._~+/=-]{16,8192}"
        ),
        rf"\1\2{MASK}",
    ),
    # user:password@ of a URL
    (re.compile(r"(://[^\s/:@]{0,256}:)[^\s/]{1,512}(@)"), rf"\1{MASK}\2"),
    # secrets in a signed URL
    (
        re.compile(
            r"(?i)\b(x-amz-(?:signature|security-token)=|signature=|security-?token=)[^&\s\"']{8,8192}"
        ),
        rf"\1{MASK}",
    ),
    # NAME=value, NAME: value, "name": "value"; --name value
    (re.compile(rf"(?i)({_NAME}{_ASSIGNED}){_VALUE}"), rf"\1{MASK}"),
    (re.compile(r"(?i)(--[\w-]{0,40}(?:secret|password|passwd|api-key|token)\s{1,4})(?!-)\S+"), rf"\1{MASK}"),
    # a token that is neither a count nor a piece of a text: eos_token=<|end|> and tokens=4096 stay
    (
        re.compile(
            rf"(?i)(token{_ASSIGNED})(?![0-9]+(?:\.[0-9]+)?(?:\W|$))[\"']?[A-Za-z0-9._~+/=-]{{8,8192}}[\"']?"
        ),
        rf"\1{MASK}",
    ),
)


class Redactor:
    """Mask of secrets, which remembers the sources that are inside a private key of many lines."""

    def __init__(self) -> None:
        self._within: dict[str, int] = {}

    def __call__(self, source: str, text: str) -> str:
        """Return a line with its secrets masked.

        Args:
            source: groups lines that follow one another, say unit and process.
        """
        text = self._without_key(source, text)
        for pattern, kept in SHAPES:
            text = pattern.sub(kept, text)
        return text

    def _without_key(self, source: str, text: str) -> str:
        """Return the text without private keys, also those that span lines before or after this one."""
        kept: list[str] = []
        left = self._within.pop(source, 0)
        while True:
            if left:
                kept.append(MASK)
                end = _KEY_ENDS.search(text)
                if end is None:
                    self._remember(source, left - 1 - text.count("\n"))
                    return "".join(kept)
                text = text[end.end() :]
            begin = _KEY_BEGINS.search(text)
            if begin is None:
                return "".join([*kept, text])
            kept.append(text[: begin.start()])
            text, left = text[begin.end() :], LONGEST_KEY_LINES

    def _remember(self, source: str, left: int) -> None:
        if left <= 0:
            return
        if len(self._within) >= MOST_SOURCES:
            del self._within[next(iter(self._within))]
        self._within[source] = left
