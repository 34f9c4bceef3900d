"""Writes TOML. Python's standard library only reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from .error import Error


def dumps(table: Mapping[str, Any]) -> str:
    """Returns a table as a TOML document.

    Values are strings, paths, numbers, booleans, lists and nested dictionaries. A key whose value is ``None`` is left
    out.

    >>> dumps({"name": "a", "train": {"epochs": 5, "fanouts": [10, -1]}})
    'name = "a"\\ntrain = {epochs = 5, fanouts = [10, -1]}\\n'
    """
    return "".join(f"{pair}\n" for pair in _pairs(table, ""))


def value(item: Any, key: str) -> str:
    """Returns a value as TOML. ``key`` names it in errors."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int):
        return str(item)
    if isinstance(item, float):
        if math.isfinite(item):
            return repr(float(item))  # that of numpy has its type
        return "nan" if math.isnan(item) else "inf" if item > 0 else "-inf"
    if isinstance(item, (str, PathLike)):
        return _string(fspath(item))
    if isinstance(item, Mapping):
        return "{" + ", ".join(_pairs(item, f"{key}.")) + "}"
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(value(each, key) for each in item) + "]"
    if hasattr(item, "tolist"):  # a number or an array of numpy
        return value(item.tolist(), key)
    raise Error(
        f"{key}: a {type(item).__name__} is not a value of TOML; use a string, number, boolean, list or dictionary"
    )


def _pairs(table: Mapping[str, Any], prefix: str) -> list[str]:
    return [f"{_key(key)} = {value(item, f'{prefix}{key}')}" for key, item in table.items() if item is not None]


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key) else _string(key)


def _string(text: str) -> str:
    # JSON escapes are those of TOML, but TOML also forbids the character 0x7f.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
