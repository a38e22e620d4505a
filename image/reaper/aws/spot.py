"""What spot machines cost on AWS at this moment."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from image.reaper.calls import Calls

PRODUCT = "Linux/UNIX"
CURRENCY = "USD"  # of every price of the API


def spot_prices(ec2: Any, calls: Calls, types: Sequence[str]) -> Mapping[str, Decimal]:
    """Instance type -> an hour of it in the dearest zone of the region, USD; types without one left out.

    Raises:
        CloudError: the prices could not be read.
    """
    now = datetime.now(UTC)
    arguments: dict[str, Any] = {
        "InstanceTypes": list(types),
        "ProductDescriptions": [PRODUCT],
        # with both at once the API tells the prices in force then (API DescribeSpotPriceHistory)
        "StartTime": now,
        "EndTime": now,
    }
    prices: dict[str, Decimal] = {}
    while True:
        page = calls.look(ec2.describe_spot_price_history, **arguments)
        for one in page["SpotPriceHistory"]:
            price = Decimal(one["SpotPrice"])
            prices[one["InstanceType"]] = max(price, prices.get(one["InstanceType"], price))
        if not page.get("NextToken"):
            return prices
        arguments["NextToken"] = page["NextToken"]
