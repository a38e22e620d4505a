"""The budget part of a policy: what the meter counts with, and what happens when the money is spent."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from image.reaper.policy_fields import Fields

NOTIFY, FREEZE = "notify", "freeze"


@dataclass(frozen=True)
class PoolPrices:
    """What a pool's machines cost an hour, in the policy's currency.

    Attributes:
        freezes: the pool takes no new machines once the budget is spent.
        on_demand: instance type -> price; None where nobody knows it, which counts nothing and is told.
        spot: the same for machines bought on the spot market, at the most that they may cost.
        disk_per_hour: the disks of one machine, stopped or not.
        gpus: instance type -> GPUs of one machine.
    """

    freezes: bool
    on_demand: dict[str, Decimal | None]
    spot: dict[str, Decimal | None]
    disk_per_hour: Decimal
    gpus: dict[str, int]


@dataclass(frozen=True)
class Budget:
    """What a month may cost.

    Attributes:
        monthly: the amount, in the policy's currency.
        percents: shares of it that raise an alarm once they are spent, rising.
        on_exceeded: ``notify``, or ``freeze``: the last but one share caps the pools that freeze at their
            size, the last closes them to new machines.
        shared_per_hour: what all pools share: gateways, endpoints, storage.
        pools: pool -> its prices.
    """

    monthly: Decimal
    percents: tuple[int, ...]
    on_exceeded: str
    shared_per_hour: Decimal
    pools: dict[str, PoolPrices]

    @property
    def freezes(self) -> bool:
        """Whether pools freeze when the money is spent."""
        return self.on_exceeded == FREEZE


def read(fields: Fields) -> Budget:
    """A policy's ``budget``; what is wrong with it goes to the fields' problems."""
    budget = Budget(
        monthly=fields.amount("monthly"),
        percents=fields.rising("percents"),
        on_exceeded=fields.choice("on_exceeded", (NOTIFY, FREEZE)),
        shared_per_hour=fields.amount("shared_per_hour"),
        pools=dict(_pools(fields)),
    )
    fields.refuse_unknown()
    if budget.freezes and len(budget.percents) < 2:  # noqa: PLR2004 -- one to cap at, one to close at
        fields.problem("percents", list(budget.percents), "two at least, because on_exceeded is freeze")
    return budget


def _pools(fields: Fields) -> Iterator[tuple[str, PoolPrices]]:
    for name, table in fields.tables("pools"):
        yield (
            name,
            PoolPrices(
                freezes=table.flag("freezes", default=False),
                on_demand=table.prices("on_demand"),
                spot=table.prices("spot"),
                disk_per_hour=table.amount("disk_per_hour"),
                gpus=dict(_gpus(table.table("gpus"))),
            ),
        )
        table.refuse_unknown()


def _gpus(fields: Fields) -> Iterator[tuple[str, int]]:
    for name in fields.names():
        yield name, fields.integer(name, 0, 1024)
