"""Errors of a stack file's text in one sentence: line, column, what is wrong and what to do. Pure."""

import codecs
import re

import yaml

ODD_SPACE = "\u00a0"
SECRET = re.compile(r"://|PRIVATE KEY")  # a webhook's address
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LONGEST_LINE = 120  # characters of a line in a message
CONFLICT = re.compile(r"<{7}|={7}|>{7}")
# Pattern of PyYAML's own words -> what to do, the first that is found.
ADVICE = {
    r"2002:(?:merge|value)'": "put quotes around the value",  # << and =
    r"'<document end>'": "remove lines that begin with % or ...",
    r"character '\\t'": "YAML takes no tab: indent with spaces",
    r"cannot start any token": "put quotes around the value",
    r"mapping values are not allowed": (
        "put quotes around a value that has a colon, end the key of the line above with a colon and a space, "
        "or indent the line like those beside it"
    ),
    r"could not find expected ':'": "a key ends with a colon and a space",
    r"but found '-'|but found '\?'": "indent the line like those beside it; a list has a key of its own",
    r"expected <block end>": "close the quote before it, or indent the line like those beside it",
    r"expected ',' or|unexpected end of stream|the stream end|expected the node content": (
        "close each bracket and quote"
    ),
    r"undefined alias": "put quotes around a value that begins with *",
    r"constructor for the tag|tag handle|can't decode|expected a (?:sequence|mapping|scalar) node": (
        "put quotes around a value that begins with !; tags are not read, so remove a tag"
    ),
    r"appears twice": "keep one of the two",
    r"another document": "remove the lines from --- on: a stack file is one document",
    r"is no number": "write a shorter number, or put quotes around a text",
    r"is no date|is no word": "put quotes around it",
    r"unhashable key": "put quotes around a value that begins with {; a key is text",
    r"escape": "write \\\\ for a backslash, or use single quotes",
    r"chomping or indentation": "put quotes around a value that begins with | or >",
    r"incompatible YAML document|'<document start>'": (
        "remove lines that begin with % or ..., and what is above config:"
    ),
    r"for merging|mapping of length": "write the keys out",
}
# Problems that begin earlier than where PyYAML sees them.
FROM_CONTEXT = re.compile(r"expected ',' or|could not find expected|the stream end|end of stream")


def explained(error: Exception, content: bytes) -> str:
    """Describe an error of reading a stack file in one sentence."""
    if isinstance(error, UnicodeDecodeError):
        return _of_encoding(error, content)
    text = content.decode("utf-8", errors="replace")
    if isinstance(error, yaml.reader.ReaderError):
        if content.count(0) * 3 > len(content):
            return "it is UTF-16 or UTF-32: save it as UTF-8"
        at = _place(text, error.position)
        return f"{at}: the character U+{_code(error.character):04X} is not allowed: remove it"
    if isinstance(error, yaml.MarkedYAMLError):
        return _of_text(error, text)
    return str(error)


def _of_text(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = (error.problem or "it is no YAML").strip()
    early = FROM_CONTEXT.search(problem) and error.context_mark
    mark = error.context_mark if early else error.problem_mark or error.context_mark
    if mark is None:
        return problem
    around = text.splitlines()[max(mark.line - 1, 0) : mark.line + 1]
    line = around[-1].strip() if mark.line < len(text.splitlines()) else ""
    advice = next((advice for pattern, advice in ADVICE.items() if re.search(pattern, problem)), "")
    if any(ODD_SPACE in near for near in around):
        advice = "replace the no-break space (U+00A0) before it by spaces"
    if CONFLICT.match(line):
        advice = "it is a mark of a merge that conflicted: keep one side"
    said = f"line {mark.line + 1}, column {mark.column + 1}: {problem}" + (f": {advice}" if advice else "")
    line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
    return f"{said}\n  {line}" if line and not SECRET.search(line) else said


def _of_encoding(error: UnicodeDecodeError, content: bytes) -> str:
    if content.startswith(UTF_16):
        return "it is UTF-16 or UTF-32: save it as UTF-8"
    before = content[: error.start].decode("utf-8")
    at = _place(before, len(before))
    return f"{at}: the byte 0x{content[error.start]:02x} is no UTF-8: save it as UTF-8"


def _place(text: str, position: int) -> str:
    before = text[:position]
    return f"line {before.count(chr(10)) + 1}, column {position - before.rfind(chr(10))}"


def _code(character: object) -> int:
    """Return the number of a character, which PyYAML gives as a number or as text."""
    return character if isinstance(character, int) else ord(str(character))
