"""A POC as one HTML page, as rows of a table for a terminal, and beside another one. Pure."""

from collections.abc import Callable, Iterator
from html import escape

from gpu_fleet_image.console.poc.result import PocResult, side_by_side
from gpu_fleet_image.console.poc.verdicts import BUS, EFFICIENCY, PER_USD, SAMPLES, ResultRow, RowVerdict
from gpu_fleet_image.core import report_page
from gpu_fleet_image.core.listing import Column, Listing

NAMES = {
    "scratch": "scratch",
    "home": "homes",
    "shared_scratch": "shared scratch",
    "bucket": "bucket",
    "all_reduce": "all-reduce",
    "resnet_small": "a small ResNet",
    "gpt_of_two_layers": "a GPT of two layers",
    "resnet50": "ResNet-50",
    "gpt2_124m": "GPT-2 124M",
}
METRICS = {
    "write": "writes in order",
    "read": "reads in order",
    "random_write": "random 4 KiB writes",
    "random_read": "random 4 KiB reads",
    "put": "upload",
    "get": "download",
    BUS: "bus bandwidth",
    SAMPLES: "samples a second",
    EFFICIENCY: "scaling efficiency",
    PER_USD: "samples per dollar",
}
STORAGE = ("scratch", "home", "shared_scratch", "bucket")
WORDS = {
    RowVerdict.PASS: "pass",
    RowVerdict.FAIL: "FAIL",
    RowVerdict.UNKNOWN: "unknown",
    RowVerdict.NONE: "no limit",
}
UNKNOWN = "unknown"
PROCESSORS, RANKS, GPUS = "CPU", "ranks", "GPUs"
NUMBERS = ("instances", RANKS, GPUS, "measured", "at least", "other", "ratio")
WRAPPED = ("of", "why, and by what")
# Bars of the scaling efficiency, each below its name; a narrow screen shrinks them to two thirds.
WIDTH, LABEL, BAR = 500, 24, 16
ROW = LABEL + BAR + 8
COLOURS = {RowVerdict.FAIL: "#b3261e", RowVerdict.PASS: "#1b4332"}
OTHER_COLOUR = "#8a949e"
FULL = 1.25  # efficiency at the right end: more than 1 happens, by caches


def page(result: PocResult, other: PocResult | None = None) -> str:
    """Return the HTML file; with another result, each figure beside its own."""
    sections = [
        ("Training", lambda row: row.subject not in (*STORAGE, "all_reduce")),
        ("All-reduce", lambda row: row.subject == "all_reduce"),
        ("Storage", lambda row: row.subject in STORAGE),
    ]
    body = [_bars(result)]
    for title, belongs in sections:
        body.append(f"<h2>{title}</h2>\n{_table(result, other, belongs)}")
    body.append(f"<h2>Limits</h2>\n{_sources(result)}")
    body.append(f"<h2>Stages</h2>\n{_stages(result)}")
    body += [f"<p>{escape(problem)}</p>" for problem in result.problems]
    return report_page.page(
        f"Before buying: {result.name}", headline(result), " ".join(_notes(result, other)), "\n".join(body)
    )


def headline(result: PocResult) -> str:
    """Return the result in one line."""
    counts = ", ".join(
        f"{result.count(verdict)} {word}"
        for verdict, word in (
            (RowVerdict.PASS, "pass"),
            (RowVerdict.FAIL, "fail"),
            (RowVerdict.UNKNOWN, UNKNOWN),
        )
    )
    facts = result.facts
    ended = "" if facts["outcome"] == "complete" else f" ({facts['outcome'].replace('-', ' ')})"
    passed = "passed" if result.passed else "not passed"
    return f"{passed}{ended}: {counts}; at most {facts['cost_usd']} USD of {facts['max_usd']}"


def _notes(result: PocResult, other: PocResult | None) -> Iterator[str]:
    facts = result.facts
    device = f"{result.ranks_per_node} x {facts['device']}" if facts["device"] else "no instance measured"
    begun, ended = (facts[name][:16].replace("T", " ") for name in ("started_at", "ended_at"))
    yield f"{begun} to {ended} UTC; {', '.join(result.types) or 'types unknown'}: {device} each,"
    yield f"at most {facts['price_per_hour']} USD an hour each."
    if facts["torch"]:
        yield f"torch {facts['torch']}, {facts['backend']}."
    if facts["device"] == PROCESSORS:
        yield (
            "There is no GPU: ranks are processes on processors, small stand-ins took the place of both "
            "models, and all-reduce ends at 16 MiB. It shows that the test works, not what the pool is worth."
        )
    if facts["reason"]:
        yield f"{facts['reason']}."
    if other is not None:
        yield f"The other is {other.name} of {other.facts['started_at'][:10]}: {headline(other)}."


def _heads(result: PocResult, other: PocResult | None) -> tuple[str, ...]:
    ranks = RANKS if result.facts["device"] == PROCESSORS else GPUS
    beside = () if other is None else ("other", "ratio")
    return "of", "figure", "instances", ranks, "measured", *beside, "at least", "verdict", "why, and by what"


def _table(result: PocResult, other: PocResult | None, belongs: Callable[[ResultRow], bool]) -> str:
    rows = [
        _cells(left, right, compared=other is not None)
        for left, right in _pairs(result, other)
        if belongs(_either(left, right))
    ]
    return report_page.table(_heads(result, other), rows, numbers=NUMBERS, ids=("of", "figure", "verdict"))


def _pairs(result: PocResult, other: PocResult | None) -> list[tuple[ResultRow | None, ResultRow | None]]:
    """Return rows in pairs, one model or place after the other; what is absent is one row for all figures."""
    pairs = side_by_side(result.rows, other.rows if other else ())
    seen: dict[tuple[str, str], int] = {}
    for left, right in pairs:
        row = _either(left, right)
        seen.setdefault((row.subject, row.metric), len(seen))
    subjects = list(dict.fromkeys(subject for subject, _ in seen))
    kept = {_fold(_either(left, right)): (left, right) for left, right in reversed(pairs)}

    def order(pair: tuple[ResultRow | None, ResultRow | None]) -> tuple[int, ...]:
        row = _either(*pair)
        return (
            subjects.index(row.subject),
            seen[row.subject, row.metric],
            row.nodes,
            row.ranks,
            row.size_mib,
        )

    return sorted(kept.values(), key=order)


def _fold(row: ResultRow) -> tuple[object, ...]:
    """Return a key that all figures share which a place does not have."""
    return (row.subject, row.reason) if row.absent and row.nodes else row.place


def _either(left: ResultRow | None, right: ResultRow | None) -> ResultRow:
    row = left or right
    assert row is not None
    return row


def _cells(left: ResultRow | None, right: ResultRow | None, *, compared: bool) -> list[str]:
    row = _either(left, right)
    measured = _value(left) if left else "not measured"
    beside = [_value(right) if right else "not measured", _ratio(left, right)] if compared else []
    least = "" if left is None or left.least is None else _number(left.least, row)
    verdict = "" if left is None or left.absent else WORDS[left.verdict]
    why = _why(left) if left else "the other alone has it"
    figure = "all" if row.absent and row.nodes else _figure(row)
    counts = [_count(row.nodes), _count(row.ranks)]
    return [_named(row.subject), figure, *counts, measured, *beside, least, verdict, why]


def _ratio(left: ResultRow | None, right: ResultRow | None) -> str:
    if left is None or right is None or left.value is None or not right.value:
        return UNKNOWN
    if left.subject != right.subject:
        return UNKNOWN  # a stand-in beside the model itself
    return f"{left.value / right.value:.2f}"


def _count(number: int) -> str:
    return str(number) if number else ""


def _named(subject: str) -> str:
    return NAMES.get(subject, subject.replace("_", " "))


def _figure(row: ResultRow) -> str:
    size = f" at {row.size_mib} MiB" if row.size_mib else ""
    return f"{METRICS.get(row.metric, row.metric.replace('_', ' '))}{size}"


def _value(row: ResultRow) -> str:
    if row.value is None:
        return "none" if row.absent else UNKNOWN
    return _number(row.value, row)


def _number(value: float, row: ResultRow) -> str:
    if "efficiency" in row.metric:
        return f"{value:.0%}"
    digits = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits
    unit = row.unit if row.unit in ("IOPS", "GB/s") else ""
    return f"{digits} {unit}".strip()


def _why(row: ResultRow) -> str:
    place = f"in place of {_named(row.stands_for)}" if row.stands_for and not row.reason else ""
    return "; ".join(filter(None, (place, row.reason, row.note, row.tool)))


def _sources(result: PocResult) -> str:
    """Return a table of the limits, once for each figure."""
    limits = {
        (row.stands_for or row.subject, row.metric, row.least): row for row in result.rows if row.source
    }
    rows = [
        [_named(subject), _figure(row), _number(row.least or 0.0, row), row.source]
        for (subject, _, _), row in limits.items()
    ]
    return report_page.table(
        ("of", "figure", "at least", "source"), rows, numbers=NUMBERS, ids=("of", "figure")
    )


def _stages(result: PocResult) -> str:
    rows = [
        [str(stage["nodes"]), str(stage["run"]), ", ".join(stage["instances"]), str(stage["outcome"])]
        for stage in result.stages
    ]
    table = report_page.table(("instances", "run", "ids", "outcome"), rows, numbers=("instances",))
    back = [[instance, says] for instance, says in (result.given_back or {}).items()]
    return f"{table}\n<h2>Given back</h2>\n{report_page.table(('instance', 'next'), back, ids=('instance',))}"


def _bars(result: PocResult) -> str:
    """Return a picture of the scaling efficiency, with a line at 100 %; empty without any."""
    known = [row for row in result.rows if row.metric == EFFICIENCY and row.value is not None]
    if not known:
        return ""
    unit = RANKS if result.facts["device"] == PROCESSORS else GPUS
    drawn = "".join(_bar(number, row, unit) for number, row in enumerate(known))
    height, full = ROW * len(known), WIDTH / FULL
    line = (
        f'<line x1="{full:.0f}" x2="{full:.0f}" y1="0" y2="{height}" stroke="#555" stroke-dasharray="4 3"/>'
    )
    caption = "<figcaption>Scaling efficiency against one GPU; the line is 100 %.</figcaption>"
    label = "Scaling efficiency"
    view = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}" font-size="15"'
    box = f"<svg {view}>{drawn}{line}</svg>"
    return f"<figure>{box}{caption}</figure>"


def _bar(number: int, row: ResultRow, unit: str) -> str:
    value = row.value or 0.0
    top, width = number * ROW, WIDTH * min(value, FULL) / FULL
    colour = COLOURS.get(row.verdict, OTHER_COLOUR)
    where = f"{row.ranks} {unit}, {row.nodes} instances" if row.nodes > 1 else f"{row.ranks} {unit}"
    text = escape(f"{_named(row.subject)}, {where}: {value:.0%}, {WORDS[row.verdict]}")
    return (
        f'<text x="0" y="{top + LABEL - 6}">{text}</text>'
        f'<rect x="0" y="{top + LABEL}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
    )


def listing(result: PocResult, other: PocResult | None = None) -> Listing:
    """Return the rows for a terminal."""
    columns = tuple(
        Column(head, "right" if head in NUMBERS else "left", wraps=head in WRAPPED)
        for head in _heads(result, other)
    )
    table = Listing(columns, result.name)
    for left, right in _pairs(result, other):
        table.add_row(*_cells(left, right, compared=other is not None))
    return table
