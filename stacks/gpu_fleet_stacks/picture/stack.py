"""The picture of one stack: egress, network by zone, pools, what they share, budget. Pure."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from xml.etree.ElementTree import Element, indent, tostring

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.catalog.money import Money
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.cost import view
from gpu_fleet_stacks.cost.lines import Cost, CostLine
from gpu_fleet_stacks.picture.svg import (
    BOLD,
    GAP,
    PADDING,
    STYLE,
    TITLE_LINE,
    Area,
    Bar,
    Panel,
    add,
    grid,
    wrap,
    write,
)
from gpu_fleet_stacks.settings import Grouping, Market, Nat, Pool, Stack, ThresholdKind
from gpu_fleet_stacks.settings.quantities import ENDPOINTS, CostKind, Level, gateways, instances

WIDTH = 800
INNER = WIDTH - 2 * PADDING
ZONES_A_ROW, POOLS_A_ROW = 3, 2
NAMES = {Cloud.AWS: "AWS", Cloud.ALICLOUD: "Alibaba Cloud"}
BUCKETS = {Cloud.AWS: "S3", Cloud.ALICLOUD: "OSS"}
HOMES = {Cloud.AWS: "EFS", Cloud.ALICLOUD: "NAS"}
SCRATCH = {Cloud.AWS: "FSx for Lustre", Cloud.ALICLOUD: "CPFS"}
ROUTE_INSET = 24  # of a route's line from the right edge of its zone; the network's name is on the left


def picture(stack: Stack, cost: Cost, notes: Sequence[str] = ()) -> str:
    """Return the SVG.

    Args:
        notes: what to know before trusting the sums (``cost.lines.warnings``).
    """
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "lang": "en"})
    summary = view.summary(cost, stack.budget.monthly)
    title = f"GPU fleet {stack.name}: {NAMES[stack.cloud]} {stack.region}"
    add(root, "title", title)
    add(root, "desc", summary)
    add(root, "style", STYLE)
    y = write(root, wrap(title, INNER, BOLD), PADDING, 4, kind="title", step=TITLE_LINE)
    y = write(
        root,
        wrap(f"account {stack.account_id}, owner {stack.owner}; {summary}", INNER),
        PADDING,
        y,
        kind="head",
    )
    y = _network(root, stack, cost, y + GAP)
    below = [_storage(stack), _shared(stack, cost), _budget(stack, cost)]
    for panels, columns in ((below[:2], 2), (below[2:], 1)):
        y = grid(root, panels, columns, Area(PADDING, y + GAP, INNER, 0))[-1].bottom
    y += GAP / 2
    for note in ("List prices before tax and discount.", *notes):
        y = write(root, wrap(note, INNER), PADDING, y, kind="head")
    height = round(y + PADDING)
    root.attrib |= {"viewBox": f"0 0 {WIDTH} {height}", "width": str(WIDTH), "height": str(height)}
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def _network(root: Element, stack: Stack, cost: Cost, y: float) -> float:
    """Draw the way out, and the network with zones and pools; return the lower edge."""
    out = grid(root, [_internet(stack)], 1, Area(PADDING, y, INNER, 0))[0]
    frame = add(root, "rect", class_="frame", x=PADDING, y=out.bottom + 2 * GAP, width=INNER, rx=8)
    routes = add(root, "g", class_="route")
    inside = Area(2 * PADDING, out.bottom + 2 * GAP, INNER - 2 * PADDING, 0)
    columns = min(ZONES_A_ROW, len(stack.network.zones))
    label = wrap(_network_name(stack), inside.width / columns - 2 * ROUTE_INSET)
    y = write(root, label, inside.x, inside.y + 4) + 6
    zones = list(_zones(stack))
    areas = grid(root, zones, columns, Area(inside.x, y, inside.width, 0))
    for area in areas[: gateways(stack.network)]:
        x = area.x + area.width - ROUTE_INSET
        add(routes, "line", x1=x, y1=area.y, x2=x, y2=out.bottom)
    y = grid(root, [_services(stack)], 1, Area(inside.x, areas[-1].bottom + GAP, inside.width, 0))[0].bottom
    pools = [_pool(stack, pool, cost) for pool in stack.pools]
    columns = min(POOLS_A_ROW, len(pools))
    bottom = grid(root, pools, columns, Area(inside.x, y + GAP, inside.width, 0))[-1].bottom + PADDING
    frame.set("height", f"{bottom - inside.y:.0f}")
    return bottom


def _network_name(stack: Stack) -> str:
    existing = stack.network.existing
    return f"VPC {stack.network.cidr}" if existing is None else f"VPC {existing.vpc_id}, of another owner"


def _internet(stack: Stack) -> Panel:
    many = gateways(stack.network)
    if not stack.network.reaches_internet:
        return Panel("internet", "Internet", ["not reached"])
    if stack.network.existing is not None:
        return Panel("internet", "Internet", ["reached by the routes of the network's owner"])
    way = f"reached through {many} NAT {'gateway' if many == 1 else 'gateways'}"
    return Panel("internet", "Internet", [f"{way}; no instance has a public address"])


def _zones(stack: Stack) -> Iterator[Panel]:
    """Yield the zones in the order of their slots, in which the first has the only NAT gateway."""
    network = stack.network
    if network.existing is not None:
        for zone, subnet in network.existing.subnets.items():
            yield Panel("zone", zone, [f"instances: {subnet}"])
        return
    for index, part in enumerate(naming.subnets(network.own_cidr, network.slot_of)):
        lines = [f"instances: {part.private}"]
        if index < gateways(network):
            lines.append(f"NAT gateway: {part.public}")
        elif network.nat is Nat.ONE:
            lines.append(f"NAT gateway: in {network.home_zone}")
        yield Panel("zone", part.zone, lines)


def _services(stack: Stack) -> Panel:
    bucket = BUCKETS[stack.cloud]
    lines = []
    if stack.network.existing is None:
        lines.append(f"{bucket} through a gateway endpoint, free of charge")
    if stack.network.interface_endpoints:
        lines.append(f"interface endpoints in each zone: {ENDPOINTS[stack.cloud]}")
    elif stack.cloud is Cloud.ALICLOUD:
        lines.append("no interface endpoints: services answer inside every VPC")
    else:
        by_owner = "the endpoints of the network's owner"
        way = "the internet" if stack.network.reaches_internet else by_owner
        lines.append(f"no interface endpoints: other services through {way}")
    if sites := stack.access.ssh_from:
        lines.append(f"SSH from {', '.join(f'{name} ({site})' for name, site in sites.items())}")
    return Panel("network", f"Services of {NAMES[stack.cloud]}", lines)


def _pool(stack: Stack, pool: Pool, cost: Cost) -> Panel:
    size, most = pool.size, instances(stack, pool)[Level.MAX]
    kinds = [catalog.load().get(name) for name in pool.types]
    gpus = max(kind.gpu_count for kind in kinds) * most
    zones = ", ".join(stack.zones_of(pool))
    where = f"a group of up to {size.max} in each of {zones}" if pool.grouping is Grouping.PER_ZONE else zones
    scratch = f", scratch {pool.scratch_gib:,} GiB" if pool.scratch_gib else ""
    spare = f", {pool.spare} spare" if pool.spare else ""
    lines = [
        f"{pool.purpose}, {_market(pool)}",
        *(f"{kind.name}: {catalog.gpus(kind)}" for kind in kinds),
        f"{size.min} to {most} instances, {size.desired} at first{spare}; up to {gpus:,} GPUs",
        f"disk {pool.volume_gib:,} GiB{scratch}",
        where,
    ]
    return Panel("pool", pool.name, lines, _amounts(cost, cost.of_pool(pool.name)))


def _market(pool: Pool) -> str:
    base = f", the first {pool.on_demand_base} on demand" if pool.on_demand_base else ""
    other = ", else on demand" if pool.on_demand_fallback and pool.market is Market.SPOT else ""
    return f"{pool.market}{base}{other}"


def _amounts(cost: Cost, lines: Sequence[CostLine]) -> list[tuple[str, ...]]:
    """Return an hour and a month of some lines: now as expected, and at worst with every group full."""
    at_least = ", at least" if any(line.unknown for line in lines) else ""
    hour = cost.hour(Level.NOW, lines).expected, cost.hour(Level.MAX, lines).worst
    return [
        (cost.currency, "now, expected", "at worst"),
        (f"an hour{at_least}", *map(_number, hour)),
        (f"a month{at_least}", *map(_number, _month(cost, lines))),
    ]


def _month(cost: Cost, lines: Sequence[CostLine]) -> tuple[Money, Money]:
    return cost.month(Level.NOW, lines).expected, cost.month(Level.MAX, lines).worst


def _number(money: Money) -> str:
    return f"{money.amount:,.2f}"


def _storage(stack: Stack) -> Panel:
    storage, cloud, existing = stack.storage, stack.cloud, stack.storage.existing
    lines = [f"buckets ({BUCKETS[cloud]}), encrypted: data, checkpoints, records"]
    lines += [f"bucket of another owner: {name}" for name in existing.buckets]
    if existing.home is not None:
        lines.append(f"homes of another owner ({HOMES[cloud]}): {existing.home.id}")
    elif storage.home:
        size = "grows by itself" if cloud is Cloud.AWS else f"{storage.home_gib:,} GiB"
        lines.append(f"homes ({HOMES[cloud]}), encrypted: {size}")
    else:
        lines.append("no shared homes")
    if existing.scratch is not None:
        lines.append(f"scratch of another owner ({SCRATCH[cloud]}): {existing.scratch.id}")
    elif storage.scratch_gib:
        lines.append(f"scratch ({SCRATCH[cloud]}): {storage.scratch_gib:,} GiB")
    if stack.protected:
        lines.append("protected: buckets, key and file systems refuse deletion")
    return Panel("storage", "Storage", lines)


def _shared(stack: Stack, cost: Cost) -> Panel:
    """Return the cost that all pools share, by kind."""
    shared = cost.of_pool(None)
    by_kind = {kind: [line for line in shared if line.kind is kind] for kind in CostKind}
    rows = [
        (
            f"of it {'queue' if kind is CostKind.COMPUTE else kind}",
            *(
                _number(each) if any(line.months for line in lines) else "unknown"
                for each in _month(cost, lines)
            ),
        )
        for kind, lines in by_kind.items()
        if lines
    ]
    queue = ["Slurm controller for all pools"] if stack.queued else []
    return Panel("shared", "Shared by all pools", queue, [*_amounts(cost, shared), *rows])


def _budget(stack: Stack, cost: Cost) -> Panel:
    budget = Money(Decimal(stack.budget.monthly), cost.currency)
    expected, worst = cost.month(Level.NOW).expected, cost.worst_month
    longest = max(budget.amount, worst.amount)
    at_least = ", at least" if cost.unknown else ""
    bars = [
        Bar(label, float(amount.amount / longest), str(amount), kind)
        for label, amount, kind in (
            (f"expected now{at_least}", expected, ""),
            (f"worst case{at_least}", worst, "over" if budget < worst else ""),
            ("budget", budget, "budget"),
        )
    ]
    words = {ThresholdKind.ACTUAL: "spent", ThresholdKind.FORECAST: "forecast"}
    alarms = ", ".join(f"{each.percent} % {words[each.kind]}" for each in stack.budget.thresholds)
    then = f"alarms at {alarms}; when exceeded: {stack.budget.on_exceeded}"
    return Panel("budget", "Budget of a month", [view.verdict(cost, budget), then], bars=bars)
