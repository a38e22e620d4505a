"""The site of docs/: every page is in its contents, no link leaves it, and it builds without a warning."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from gpu_fleet_image.core import metrics, model
from gpu_fleet_stacks.acceptance.aws_calls import CALLS
from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.deployer import aws
from gpu_fleet_stacks.settings import reader, stack_files, yaml_text
from tests.ran import ran

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted({*DOCS.rglob("*.md")} - {*DOCS.glob("changes/*.md")})
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANCHORED = re.compile(r"\]\((?!https?:)([^)#\s]*\.md|)#([^)\s]+)\)")
ROOMS = ("stacks", "image", "training", "tests")
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What a reader says of a key or a shape, rather than of a value beside the rest of a stack.
SHAPE = re.compile(
    r"unknown key|no namespace|read by nothing|must be (?:a (?:list|mapping|number)|text|true)"
)
PREFLIGHT = "stacks/gpu_fleet_stacks/preflight"
# An API of AWS in boto3's words, or one of Alibaba Cloud, after the name of its service.
CALL = re.compile(r'"[a-z0-9-]+",\s+"((?:get|describe|head|list)_[a-z_]+|[A-Z][a-z]+[A-Z][A-Za-z]+)"')
# What the permission is called, where that is not the name of the call.
BY_IAM = {
    "head_bucket": "ListBucket",
    "get_bucket_encryption": "GetEncryptionConfiguration",
    "describe_budget": "ViewBudget",
    "describe_budgets": "ViewBudget",
    "delete_objects": "DeleteObjectVersion",
    "list_multipart_uploads": "ListBucketMultipartUploads",
    "list_object_versions": "ListBucketVersions",
    "list_objects_v2": "ListBucket",
}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def in_contents() -> set[Path]:
    """The pages that a table of contents names, by their files."""
    found = set()
    for page in PAGES:
        for block in TOCTREE.findall(page.read_text()):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            found |= {path for name in names for path in page.parent.glob(f"{name}.md")}
    return found


def test_every_page_is_in_the_contents():
    assert len(PAGES) > 40
    assert sorted({*PAGES} - in_contents()) == [DOCS / "index.md"]


def test_no_link_of_the_site_leaves_it():
    leaving = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in LINK.findall(page.read_text())
        if not (page.parent / link).resolve().is_relative_to(DOCS)
    ]

    assert leaving == []


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_to_a_heading_finds_it():
    """The site's own are checked when it is built; those of READMEs by nothing else."""
    pages = [*ROOT.glob("*.md"), *PAGES, *(p for room in ROOMS for p in (ROOT / room).rglob("README.md"))]
    lost = [
        f"{page.relative_to(ROOT)}: {place}#{anchor}"
        for page in pages
        for place, anchor in ANCHORED.findall(page.read_text())
        if anchor not in headings((page.parent / place).resolve() if place else page)
    ]

    assert lost == []


def test_every_metric_and_tag_is_on_their_page():
    page = (DOCS / "reference/metrics.md").read_text()
    names = {
        value
        for module in (metrics, model)
        for name, value in vars(module).items()
        if name.startswith(("METRIC_", "TAG_"))
    }

    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_every_call_of_preflight_is_on_its_page():
    page = (DOCS / "how-to/preflight.md").read_text()
    sources = {path: path.read_text() for path in (ROOT / PREFLIGHT).glob("*.py")}
    calls = {call for text in sources.values() for call in CALL.findall(text)}
    names = {call: "".join(word[0].upper() + word[1:] for word in call.split("_")) for call in calls}
    named = {BY_IAM.get(call, name) for call, name in names.items()}

    assert len(named) > 30
    assert [name for name in sorted(named) if f"{name}`" not in page] == []


def test_the_page_on_acceptance_names_every_right_that_no_deployer_has():
    page = (DOCS / "how-to/accept.md").read_text()
    grants = [*(grant for row in aws.TABLE.values() for grant in row), *aws.DESTROY, *aws.EMPTY_BUCKETS]
    had = {action for grant in grants for action in grant.actions.split()}
    had |= set(re.findall(r"`([a-z0-9]+:[A-Za-z*]+)`", page))
    asked = {right(*call.split(".")) for call in CALLS} - {"sts:GetCallerIdentity"}  # no right is needed

    assert len(asked) > 20
    assert [name for name in sorted(asked) if not any(fnmatchcase(name, action) for action in had)] == []


def right(service: str, operation: str) -> str:
    """The permission of a call of boto3."""
    name = "".join(word.capitalize() for word in operation.split("_"))
    service = {"resourcegroupstaggingapi": "tag"}.get(service, service)
    return f"{service}:{BY_IAM.get(operation, name)}"


def test_every_yaml_block_is_a_piece_of_a_stack_file():
    """A reader pastes it below `config:`: its keys must be known, and of the shape that the settings have."""
    base = stack_files.config_of(ROOT / "stacks/Pulumi.aws-dev.yaml")
    blocks = [(page, block) for page in PAGES for block in YAML.findall(page.read_text())]
    wrong = [
        f"{page.relative_to(ROOT)}: {error}"
        for page, block in blocks
        for error in shape_errors({**base, **yaml_text.read(block)})
    ]

    assert len(blocks) > 10
    assert wrong == []


def shape_errors(config: dict[str, object]) -> list[str]:
    try:
        reader.from_config("page", config)
    except SettingsError as error:
        return [f"{problem}" for problem in error.problems if SHAPE.search(problem.allowed)]
    return []


@pytest.mark.prove
def test_the_site_builds_without_a_warning():
    done = ran(["make", "docs"], cwd=ROOT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (ROOT / "build/docs/index.html").exists()
