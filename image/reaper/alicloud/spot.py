"""What spot machines cost on Alibaba Cloud at this moment."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from image.reaper.alicloud.session import Product
from image.reaper.calls import Calls

MAX_PAGES = 100  # of one type; a cloud that hands out offsets for ever is not believed


def spot_prices(ecs: Product, calls: Calls, currency: str, types: Sequence[str]) -> Mapping[str, Decimal]:
    """Instance type -> an hour of it in the dearest zone of the region; types without a price left out.

    Args:
        ecs: the client.
        calls: makes the calls, one a type at least.
        currency: of the policy; prices in another one are left out.
        types: instance types.

    Raises:
        CloudError: the prices could not be read.
    """
    found = {}
    for name in types:
        newest: dict[str, tuple[str, Decimal]] = {}  # zone -> (when, price); times are ISO 8601 in UTC
        for one in _history(ecs, calls, currency, name):
            told = one["Timestamp"], Decimal(str(one["SpotPrice"]))
            newest[one["ZoneId"]] = max(newest.get(one["ZoneId"], told), told)
        if newest:
            found[name] = max(price for _, price in newest.values())
    return found


def _history(ecs: Product, calls: Calls, currency: str, name: str) -> Iterator[dict[str, Any]]:
    offset = 0
    for _ in range(MAX_PAGES):
        page = calls.look(
            ecs.action("DescribeSpotPriceHistory"),
            InstanceType=name,
            NetworkType="vpc",
            OSType="linux",
            Offset=offset,
        )
        if page.get("Currency") == currency:
            yield from page["SpotPrices"]["SpotPriceType"]
        following = int(page.get("NextOffset") or 0)
        if following <= offset:
            return
        offset = following
