"""The field's words, in text that users read: messages, help texts and READMEs.

One list serves all rooms, and also what their developers read: docstrings and comments.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce

from checks.sources import PRODUCT, Checkout, Finding, Module, NothingToCheckError

Lines = Iterable[tuple[int, str]]

# a word that is of this house alone -> the field's
IN_NOTES = {
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
# further words for users' texts; a docstring may say where a loop ends
FOR_USERS = IN_NOTES | {
    r"\ball (?:it|they) meant to\b": "had failed actions",
    r"\bend(?:s|ed|ing)? (?:it|them|that one|nobody|none|any|(?:any|no)thing|instances?)\b": "terminate",
    r"\b(?:is|are|be|being|was|were) ended\b": "terminated, stopped",
    r"\bends (?:if unused|of idle)\b|\b(?:confirmed|every) ends?\b|\bdenies the end\b": "terminate",
    r"\bmarked, ended\b|\} ended\b(?! (?:as|with))|\bby \{\} ends\b|\bsweep ends\b": "terminated or stopped",
}
# A docstring begins with a verb or a noun phrase; ruff's D401 holds the verbs of functions to the imperative.
NO_BEGINNING = re.compile(
    r"(?:What|Whether|As|Of|But|Where|How|Who|Whose|Why|When|Which|Those|For|That|The same|So|If)\b"
)
PLAIN = ("stacks", "image", "training", ".ci")  # rooms that keep this
ANY_DIGIT = re.compile(r"\\d|\.is(?:digit|decimal|numeric)\(")
ASCII_ALONE = re.compile(r"\.isascii\(|rb\"|re\.ASCII")
# a name of product code says what it holds
NAMELESS = {"one", "found", "told", "tell", "tells", "Found", "Word", "machine", "machines"}
HOUSE_PARTS = {"told", "tell", "tells", "machine", "machines", "somebody"}
NO_TEXTS = (".py", ".json", ".lock")
# file -> text that holds such a word, and why it may
EXCEPTIONS = {
    "image/gpu_fleet_image/recipe/wheels.py": {
        "so the machine has no CUDA of its own": "the bytes of the list name wheels in deployed buckets",
    },
    "image/gpu_fleet_image/recipe/wheels/ubuntu-24.04.txt": {
        "so the machine has no CUDA of its own": "the same bytes"
    },
    "image/gpu_fleet_image/recipe/packages.toml": {"[machine]": "a name of deployed images' package groups"},
    "image/gpu_fleet_image/recipe/steps/10-base.sh": {"install_group machine": "the same"},
    "image/gpu_fleet_image/recipe/steps/90-seal.sh": {"machine-id": "systemd's own name"},
    "training/gpu_fleet/metrics/goodput.py": {"Large-Scale Machine Learning": "the title of a paper"},
    "stacks/gpu_fleet_stacks/settings/schema.py": {"people: login name": "the key access.people"},
    "docs/reference/settings.md": {"| `people` |": "a key of the stack file"},
    "docs/how-to/accounts.md": {"  people:": "a key of the stack file"},
    "docs/explanation/clouds.md": {"`people: launch`": "a step of the acceptance run, named by its pool"},
}


def of_modules(checkout: Checkout) -> Iterator[Finding]:
    """Find house words in messages, docstrings, comments and names."""
    for module in checkout.modules(*PRODUCT):
        yield from hits(module.path, texts(module), FOR_USERS)
        yield from hits(module.path, notes(module), IN_NOTES)
        yield from nameless(module)


def beginnings(checkout: Checkout) -> Iterator[Finding]:
    """Find docstrings and helps that begin with a question word, a conjunction or a preposition."""
    for module in (module for room in PLAIN for module in checkout.modules(room)):
        helps = [given.value for given in module.all(ast.keyword) if given.arg == "help"]
        for text in [*module.notes, *(each for each in helps if isinstance(each, ast.Constant))]:
            if hit := NO_BEGINNING.match(str(text.value).lstrip()):
                yield Finding(
                    module.path, text.lineno, f"begins with {hit[0]!r}: write a verb or a noun phrase"
                )


def of_documents(checkout: Checkout) -> Iterator[Finding]:
    """Find house words in pages, scripts, units and settings."""
    for path in documents(checkout):
        yield from hits(path, enumerate(checkout.text(path).splitlines(), 1), FOR_USERS)


def exceptions(checkout: Checkout) -> Iterator[Finding]:
    """Find exceptions for texts that no longer exist."""
    for path, allowed in EXCEPTIONS.items():
        gone = [part for part in allowed if part not in checkout.text(path)]
        yield from (Finding(path, 1, f"exception {part!r} is not there") for part in gone)


def documents(checkout: Checkout) -> list[str]:
    """Return pages, scripts, units and settings: of the rooms, at the top, and the tests' own page."""
    rooms = checkout.files(*PRODUCT, "docs", ".ci")
    top = [path for path in checkout.paths if "/" not in path and path.endswith(".md")]
    found = [path for path in (*top, "tests/README.md", *rooms) if not path.endswith(NO_TEXTS)]
    if found == ["tests/README.md"]:
        raise NothingToCheckError("no page, script or unit to check")
    return found


def hits(path: str, lines: Lines, words: Mapping[str, str]) -> Iterator[Finding]:
    """Find every house word in the texts of a file, without the exceptions."""
    allowed, any_word = EXCEPTIONS.get(path, {}), re.compile("|".join(words), re.IGNORECASE)
    for line, text in lines:
        left = reduce(lambda rest, part: rest.replace(part, ""), allowed, text)
        if any_word.search(left) is None:
            continue
        for word, instead in words.items():
            if hit := re.search(word, left, re.IGNORECASE):
                at = line + left.count("\n", 0, hit.start())
                yield Finding(path, at, f"{hit[0]!r}, a word of the house: write {instead}")


def texts(module: Module) -> Lines:
    """Return the strings of a module that users read; a single word is a key, a name or a path."""
    formatted = list(module.all(ast.JoinedStr))
    apart = {id(part) for text in formatted for part in text.values} | {id(note) for note in module.notes}
    strings = [(text.lineno, _flat(text)) for text in formatted]
    strings += [
        (node.lineno, node.value)
        for node in module.all(ast.Constant)
        if isinstance(node.value, str) and id(node) not in apart
    ]
    return [(line, text) for line, text in strings if " " in text.strip()]


def _flat(text: ast.JoinedStr) -> str:
    """Return a formatted text, with {} for each value."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in text.values)


def notes(module: Module) -> Lines:
    """Yield the texts for a module's developers: its docstrings and its comments."""
    yield from ((note.lineno, str(note.value)) for note in module.notes)
    if re.search(f"#.*(?:{'|'.join(IN_NOTES)})", module.text, re.IGNORECASE):  # tokenizing all takes seconds
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def nameless(module: Module) -> Iterator[Finding]:
    """Find names that say nothing, or use a house word."""
    for name, line in bound_names(module):
        bare = name.strip("_")
        if bare in NAMELESS or HOUSE_PARTS & set(bare.lower().split("_")):
            yield Finding(module.path, line, f"the name {name} does not say what it holds")


def bound_names(module: Module) -> Iterator[tuple[str, int]]:
    """Yield every name that a module binds: variable, attribute, argument, function, class, alias."""
    for name in module.all(ast.Name):
        if isinstance(name.ctx, ast.Store):
            yield name.id, name.lineno
    for attribute in module.all(ast.Attribute):
        if isinstance(attribute.ctx, ast.Store):
            yield attribute.attr, attribute.lineno
    yield from ((node.name, node.lineno) for node in module.all(ast.FunctionDef))
    yield from ((node.name, node.lineno) for node in module.all(ast.ClassDef))
    yield from ((node.arg, node.lineno) for node in module.all(ast.arg))
    yield from ((node.asname or "", node.lineno) for node in module.all(ast.alias))


def digits(checkout: Checkout) -> Iterator[Finding]:
    """Find patterns and checks that take the digits of every script, as a user or a cloud may write them."""
    for module in checkout.modules(*PRODUCT):
        for number, line in enumerate(module.text.splitlines(), 1):
            if (hit := ANY_DIGIT.search(line)) and not ASCII_ALONE.search(line):
                message = f"{hit[0]!r} takes the digits of every script: write [0-9], or ask isascii() too"
                yield Finding(module.path, number, message)


CHECKS = (of_modules, beginnings, of_documents, exceptions, digits)
