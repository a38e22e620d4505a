"""Error codes for a missing permission, one list a cloud: the credentials are valid, the call is refused."""

AWS_DENIED = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedException"),
        *("UnauthorizedOperation", "403"),
    }
)
# each product has codes of its own
ALICLOUD_DENIED = frozenset(
    {"Forbidden", "Forbidden.RAM", "Forbidden.Unauthorized", "NoPermission", "NotAuthorized"}
)
DENIED = AWS_DENIED | ALICLOUD_DENIED
