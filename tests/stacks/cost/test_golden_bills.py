"""The bills worked out by hand (``test_cost.BY_HAND``) catch a wrong price; AWS's prices are all known."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pytest

from gpu_fleet_stacks.cost import estimate as module
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.settings import stack_files
from tests.bench.bench_cost import priced_parts_share
from tests.stacks.cost.test_cost import BY_HAND, parts_of
from tests.stacks.shipped import SHIPPED

STACKS = {name: stack_files.settings_of(name) for name in SHIPPED}


def counted(name: str) -> Iterator[tuple[str, Decimal]]:
    """Yield the prices that a stack's bill counts, and a factor that makes each wrong: one percent more.

    On spot the first type is expected, no other. Of a pool's later types the dearest counts, so another one
    is wrong once it passes that.
    """
    pools = STACKS[name].pools
    known = {quote.what: quote.amount for quote in estimate(STACKS[name]).quotes if quote.amount is not None}
    first = {f"{pool.types[0]} on spot" for pool in pools}
    later = {kind: max(known[each] for each in pool.types) for pool in pools for kind in pool.types[1:]}
    for what, amount in known.items():
        if not what.endswith(" on spot") or what in first:
            yield what, Decimal(3) if amount < later.get(what, 0) else Decimal("1.01")


PRICES = [(name, *price) for name in SHIPPED for price in counted(name)]


@pytest.mark.parametrize(("name", "what", "factor"), PRICES)
def test_a_wrong_price_changes_a_bill_that_was_worked_out_by_hand(name, what, factor, monkeypatch):
    for function in ("instance_quote", "item_quote", "spot_quote"):
        real = getattr(module, function)

        def wrong(*arguments, real=real):
            quote = real(*arguments)
            return (
                replace(quote, amount=quote.amount * factor) if quote.what == what and quote.amount else quote
            )

        monkeypatch.setattr(module, function, wrong)

    assert parts_of(estimate(STACKS[name])) != BY_HAND[name]


def test_every_price_of_the_shipped_stacks_on_aws_is_published_for_their_region():
    assert priced_parts_share() == 1.0
