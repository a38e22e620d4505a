"""The field's words, in what users read: messages, help texts and READMEs.

One list for all rooms, and for what those who work on them read: docstrings and comments.
"""

import ast
import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# a word that is of this house alone -> the field's
HOUSE_WORDS = {
    r"(?<!virtual )\bmachines?\b": "instance; computer, where it is the user's own",
    r"(?<!access\.)\b(?:people|persons?|somebody)\b(?! else)": "owner, user or operator",
    r"\btold\b": "notified, or what was said",
    r"\btak(?:e|es|en|ing) (?:it |them )?(?:away|back)\b": "terminate, stop, interrupt",
    r"\bwhat came of\b": "results",
    r"\bwill go\b": "will be terminated",
    r"\b(?:is|are|was|were) sound\b": "OK, healthy",
    r"\basks nobody\b": "skip peer discovery",
    r"\btell(?:s|ing)?\b(?! apart)": "notify, report, say, show or distinguish",
    r"\bnotified before (?:it|they) go": "notified before it is terminated",
    r"\bended (?:one|instance)s?\b": "terminated or stopped",
    r"\binstance goes\b(?! (?:on|to|by|into|through)\b)|; goes\b": "is interrupted, stopped or terminated",
}
# the same in what users read; a docstring may say where a loop ends
USER_WORDS = {
    r"\ball (?:it|they) meant to\b": "had failed actions",
    r"\bend(?:s|ed|ing)? (?:it|them|that one|nobody|none|any|(?:any|no)thing|instances?)\b": "terminate",
    r"\b(?:is|are|be|being|was|were) ended\b": "terminated, stopped",
    r"\bends (?:if unused|of idle)\b|\b(?:confirmed|every) ends?\b|\bdenies the end\b": "terminate",
    r"\bmarked, ended\b|\} ended\b(?! (?:as|with))|\bby \{\} ends\b|\bsweep ends\b": "terminated or stopped",
}
# a name of product code says what it holds; tests may still say what was found
NAMELESS = {"one", "found", "told", "tell", "tells", "Found", "Word", "machine", "machines"}
HOUSE_PARTS = {"told", "tell", "tells", "machine", "machines", "somebody"}
NAMELESS_IN_TESTS = {"one", "told", "tell", "tells", "Told", "machine", "machines"}
IN_TEST_NAMES = {
    *("told", "tell", "tells", "sound", "people", "somebody"),  # machines of tests are virtual ones
    *("nobody", "nobodys", "goes", "ended"),
}
TEST_NAME = re.compile(r"^def (test_\w+)", re.MULTILINE)
ROOMS = ("stacks", "image", "training")
SCRIPTS = ("stacks", "image", "training", ".ci")
NO_SCRIPTS = {".py", ".md", ".json", ".lock", ".pyc"}
DOCUMENTS = ("*.md", "docs/**/*.md", "tests/README.md")  # of no room
# file -> text that holds such a word, and why it may
EXCEPTIONS = {
    "CHANGELOG.md": {"instance where they said machine": "the change itself"},
    "image/wheels.py": {
        "so the machine has no CUDA of its own": "the bytes of the list name wheels in deployed buckets",
    },
    "image/wheels/ubuntu-24.04.txt": {"so the machine has no CUDA of its own": "the same bytes"},
    "image/packages.toml": {"[machine]": "a name of deployed images' package groups"},
    "image/steps/10-base.sh": {"install_group machine": "the same"},
    "image/steps/90-seal.sh": {"machine-id": "systemd's own name"},
    "image/reaper/people/status.py": {"told apart": "tell apart, set off from one another"},
    "image/reaper/agent/listening.py": {"told apart": "the same"},
    "training/gpu_fleet/metrics/goodput.py": {"Large-Scale Machine Learning": "the title of a paper"},
    "stacks/settings/schema.py": {"people: login name": "the key access.people"},
    "stacks/monitoring/grafana.py": {'job="machine"': "a label of the scrapes of stacks that are deployed"},
    "image/reaper/README.md": {"people/": "the name of a folder"},
    "stacks/aws/README.md": {"    people:": "a key of the stack file", "`people.py`": "a module's name"},
    "docs/settings.md": {"| `people` |": "a key of the stack file"},
    "stacks/acceptance/README.md": {"pool `people`": "the name of a pool"},
    "stacks/alicloud/README.md": {
        "`people: launch`": "a step of the acceptance run, named by its pool",
        "`people.py`": "a module's name",
    },
}


def texts(path):
    """What of a file users read: its text, or of a module the strings that are no docstrings."""
    if path.suffix != ".py":
        return path.read_text().splitlines()
    tree = ast.parse(path.read_text())
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = docstrings.union(id(part) for node in formatted for part in node.values)
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    strings = [node.value for node in constants if isinstance(node.value, str)]
    strings += ["".join(getattr(part, "value", "{}") for part in _flat(node)) for node in formatted]
    return [text for text in strings if " " in text.strip()]  # a text of one word is a key, a name or a path


def _flat(text):
    """The parts of a formatted text: a Constant, or None where a value stands."""
    return [part if isinstance(part, ast.Constant) else None for part in text.values]


def notes(path):
    """What those read who work on a module: its docstrings and its comments."""
    source = path.read_text()
    tree = ast.parse(source)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
    return [text for text in (*docstrings, *comments) if text]


def bound_names(path):
    """Every name that a module binds: variable, attribute, argument, function, class, alias."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def nameless(path):
    """A line for every name that says nothing, or says it in a word of the house."""
    for name in sorted(set(bound_names(path))):
        bare = name.strip("_")
        if bare in NAMELESS or HOUSE_PARTS & set(bare.lower().split("_")):
            yield f"{path.relative_to(ROOT)}: {name}"


def files(room):
    return sorted([*(ROOT / room).rglob("*.py"), *(ROOT / room).rglob("README.md")])


def scripts():
    """Scripts, units and settings of all rooms."""
    paths = [path for room in SCRIPTS for path in sorted((ROOT / room).rglob("*"))]
    return [path for path in paths if path.is_file() and path.suffix not in NO_SCRIPTS]


def found(path, read=texts):
    """A line for every house word in a file, but for the exceptions."""
    allowed = EXCEPTIONS.get(str(path.relative_to(ROOT)), {})
    for text in read(path):
        left = functools.reduce(lambda rest, part: rest.replace(part, ""), allowed, text)
        for word, instead in (HOUSE_WORDS | USER_WORDS if read is texts else HOUSE_WORDS).items():
            if hit := re.search(word, left, re.IGNORECASE):
                line = " ".join(left.split())[:100]
                yield f"{path.relative_to(ROOT)}: {hit[0]!r} (write {instead}): {line}"


@pytest.mark.parametrize("room", ROOMS)
def test_users_read_the_words_of_the_field(room):
    paths = files(room)

    assert len(paths) > 20
    assert [line for path in paths for line in found(path)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_and_comments_have_the_words_of_the_field(room):
    paths = [path for path in files(room) if path.suffix == ".py"]

    assert len(paths) > 20
    assert [line for path in paths for line in found(path, notes)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_names_of_product_code_say_what_they_hold(room):
    paths = [path for path in files(room) if path.suffix == ".py"]

    assert len(paths) > 20
    assert [line for path in paths for line in nameless(path)] == []


def test_names_within_tests_say_what_they_hold():
    paths = sorted((ROOT / "tests").rglob("*.py"))

    vague = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name in sorted(set(bound_names(path)))
        if name.strip("_") in NAMELESS_IN_TESTS
    ]

    assert len(paths) > 200
    assert vague == []


def test_names_of_tests_have_the_words_of_the_field():
    names = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in TEST_NAME.findall(path.read_text())
    }

    assert len(names) > 1000
    assert [name for name in sorted(names) if IN_TEST_NAMES & set(name.split("_"))] == []


def test_scripts_units_and_settings_have_the_words_of_the_field():
    paths = scripts()

    assert len(paths) > 90
    assert [line for path in paths for line in found(path)] == []


def test_documents_have_the_words_of_the_field():
    paths = [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]

    assert len(paths) > 10
    assert [line for path in paths for line in found(path)] == []


@pytest.mark.parametrize("path", EXCEPTIONS)
def test_every_exception_is_still_there(path):
    of_module = notes(ROOT / path) if path.endswith(".py") else []
    whole = "\n".join([*texts(ROOT / path), *of_module])

    assert [text for text in EXCEPTIONS[path] if text not in whole] == []


def test_a_house_word_in_a_message_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_words.ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text('"""A machine of a docstring."""\nKEY = "machine"\nTEXT = f"{KEY}: the machine goes"\n')

    (line,) = found(module)
    (note,) = found(module, notes)

    assert "the machine goes" in line
    assert "of a docstring" in note
