"""Strict numbers, switches and currencies in files.

pydantic alone takes ``true`` and ``"3"`` for numbers and ``1`` for true. The validators here refuse that; put
one in ``Annotated`` after type and range of a field: ``Annotated[int, Field(gt=0), NUMBER]``.
"""

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator


def _amount(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("must be a number, without quotes" if _says_one(value) else "must be a number")
    return _amount(value)


def _says_one(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false, without quotes")
    return value


def _currency(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z]{3}", value):
        raise ValueError("must be the three capital letters of one, such as USD")
    return value


def _text_switch(value: Any) -> Any:
    return value == "true" if value in ("true", "false") else value


NUMBER = BeforeValidator(_number)
AMOUNT = BeforeValidator(_amount)  # text is allowed too: a quoted amount of money keeps its decimals
Currency = Annotated[str, BeforeValidator(_currency)]
Switch = Annotated[bool, BeforeValidator(_switch)]
# At the top of a stack file: `pulumi config set` writes texts there, and Pulumi gives texts to the program.
TextSwitch = Annotated[Switch, BeforeValidator(_text_switch)]
