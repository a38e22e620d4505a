"""The bills worked out by hand (``test_cost.BY_HAND``) catch a wrong price; AWS's prices are all known."""

from dataclasses import replace

import pytest

from gpu_fleet_stacks.cost import estimate as module
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.settings import stack_files
from tests.bench.bench_cost import priced_parts_share
from tests.stacks.cost.test_cost import BY_HAND, parts_of
from tests.stacks.shipped import SHIPPED

STACKS = {name: stack_files.settings_of(name) for name in SHIPPED}


def counted(name: str) -> list[str]:
    """Return the prices that a stack's bill counts: on spot the first type is expected, no other."""
    first = {f"{pool.types[0]} on spot" for pool in STACKS[name].pools}
    quotes = [quote for quote in estimate(STACKS[name]).quotes if quote.amount is not None]
    return [each.what for each in quotes if not each.what.endswith(" on spot") or each.what in first]


PRICES = [(name, what) for name in SHIPPED for what in counted(name)]


@pytest.mark.parametrize(("name", "what"), PRICES)
def test_a_wrong_price_changes_a_bill_that_was_worked_out_by_hand(name, what, monkeypatch):
    for function in ("instance_quote", "item_quote", "spot_quote"):
        real = getattr(module, function)

        def wrong(*arguments, real=real):
            quote = real(*arguments)
            return replace(quote, amount=quote.amount * 3) if quote.what == what and quote.amount else quote

        monkeypatch.setattr(module, function, wrong)

    assert parts_of(estimate(STACKS[name])) != BY_HAND[name]


def test_every_price_of_the_shipped_stacks_on_aws_is_published_for_their_region():
    assert priced_parts_share() == 1.0
