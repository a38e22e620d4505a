"""Metadata that every user may read: these paths and no others.

They never include a role's keys, user data, or a document that proves the instance's identity to others.
"""

ALLOWED = {
    "aws": frozenset(
        {
            *(
                "ami-id",
                "instance-id",
                "instance-type",
                "instance-life-cycle",
                "local-hostname",
                "local-ipv4",
            ),
            *("placement/availability-zone", "placement/availability-zone-id", "placement/region"),
            *("spot/instance-action", "spot/termination-time", "events/recommendations/rebalance"),
            *("events/maintenance/scheduled", "autoscaling/target-lifecycle-state"),
        }
    ),
    "alicloud": frozenset(
        {
            *("image-id", "instance-id", "instance/instance-type", "hostname", "private-ipv4"),
            *("region-id", "zone-id", "instance/spot/termination-time"),
        }
    ),
}
