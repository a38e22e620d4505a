"""Error codes for a missing permission, one list a cloud: the credentials are valid, the call is refused."""

_AWS_DENIED = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedException"),
        *("UnauthorizedOperation", "403"),
    }
)
# each product has codes of its own
_ALICLOUD_DENIED = frozenset(
    {"Forbidden", "Forbidden.RAM", "Forbidden.Unauthorized", "NoPermission", "NotAuthorized"}
)
DENIED = _AWS_DENIED | _ALICLOUD_DENIED
