"""Trails in moto: CloudTrail."""

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)

_TRAIL = api_names(
    "s3BucketName s3KeyPrefix enableLogFileValidation includeGlobalServiceEvents isMultiRegionTrail"
)
_FIELD = {"Field": "field", "Equals": "equals", "StartsWith": "startsWiths"}


def trail(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    client = clients("cloudtrail")
    trail_name = physical_name(name, inputs)
    made = client.create_trail(
        Name=trail_name, TagsList=tag_list(inputs.get("tags", {})), **picked(inputs, _TRAIL)
    )
    selectors = [
        {"Name": each["name"], "FieldSelectors": [picked(field, _FIELD) for field in each["fieldSelectors"]]}
        for each in inputs.get("advancedEventSelectors", [])
    ]
    if selectors:
        client.put_event_selectors(TrailName=trail_name, AdvancedEventSelectors=selectors)
    client.start_logging(Name=trail_name)
    return made["TrailARN"], with_tags_all(
        inputs, name=trail_name, arn=made["TrailARN"], homeRegion=clients.region, enableLogging=True
    )


CREATORS = {"aws:cloudtrail/trail:Trail": trail}
