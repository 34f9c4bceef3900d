"""Turns the settings of a case into pipeline.toml, or into `--set` arguments.

Only `rename` depends on the names of configuration keys. If keys are renamed, change it instead of the cases.
"""
import json
import pathlib
from typing import Any

Settings = dict[str, Any]


def rename(settings: Settings) -> Settings:
    """Returns the settings with the current keys of pipeline.toml."""
    return settings


def value(item: Any) -> str:
    """Formats a value as TOML."""
    if isinstance(item, dict):
        return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in item.items()) + " }"
    if isinstance(item, list):
        return "[" + ", ".join(map(value, item)) + "]"
    return json.dumps(item)


def to_toml(settings: Settings, inputs: pathlib.Path) -> str:
    """Formats settings as a pipeline file of dotted keys. `INPUTS` is replaced by the folder of inputs."""
    text = "".join(f"{key} = {value(item)}\n" for key, item in rename(settings).items())
    return text.replace("INPUTS", str(inputs))


def to_sets(settings: Settings) -> list[str]:
    """Returns the settings as command-line arguments."""
    return [word for key, item in rename(settings).items() for word in ("--set", f"{key}={value(item)}")]
