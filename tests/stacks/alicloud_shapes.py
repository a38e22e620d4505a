"""A hypothesis strategy for valid stack files of Alibaba Cloud of any shape."""

from typing import Any

from hypothesis import strategies as st

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from tests.stacks.alicloud_examples import pool, stack_file

TYPES = [kind.name for kind in catalog.load().of_cloud(Cloud.ALICLOUD)]
ERDMA_TYPES = [kind.name for kind in catalog.load().of_cloud(Cloud.ALICLOUD) if kind.erdma_interfaces]


@st.composite
def stack_files_of_any_shape(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a valid stack file."""
    zones = draw(st.lists(st.sampled_from([f"cn-shenzhen-{x}" for x in "abcdef"]), min_size=1, unique=True))
    nat = draw(st.sampled_from(["none", "one", "per_zone"]))

    def drawn_pool(name: str) -> dict[str, Any]:
        erdma, market = draw(st.booleans()), draw(st.sampled_from(["on-demand", "spot", "reservation"]))
        low, middle, high = sorted(draw(st.tuples(*[st.integers(0, 20)] * 3)))
        kinds = st.sampled_from(ERDMA_TYPES if erdma else TYPES)
        return pool(
            name=name,
            types=draw(
                st.lists(kinds, min_size=1, max_size=1 if market == "reservation" else 4, unique=True)
            ),
            market=market,
            reservation_id=f"eap-{name}" if market == "reservation" else None,
            zones=zones[:1] if market == "reservation" else [],
            size={"min": low, "desired": middle, "max": max(high, 1)},
            erdma=erdma,
            groups=draw(st.sampled_from([None, "single", "per_zone"])),
            purpose=draw(st.sampled_from(["interactive", "training", "serving"])),
            scratch_gib=draw(st.sampled_from([0, 200])),
            spot_price_limit=draw(st.sampled_from([None, "3.5"])) if market == "spot" else None,
        )

    return stack_file(
        network={"cidr": "10.0.0.0/16", "zones": zones, "nat": nat, "interface_endpoints": nat == "none"},
        protected=draw(st.booleans()),
        storage={
            "kms_instance_id": "kst-1",
            "home": draw(st.booleans()),
            "scratch_gib": draw(st.sampled_from([0, 3600, 4800])),
            "redundancy": draw(st.sampled_from(["LRS", "ZRS"])),
        },
        pools=[
            drawn_pool(name)
            for name in draw(st.lists(st.sampled_from(["a1", "b1"]), min_size=1, unique=True))
        ],
    )
