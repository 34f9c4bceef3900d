"""Turns the settings of a case into pipeline.toml, or into `--set` arguments.

`rename` is the only place that knows the shape of the configuration. When keys move, change it and leave the cases alone.
"""
import json
import pathlib
from typing import Any

Settings = dict[str, Any]


def rename(settings: Settings) -> Settings:
    """Returns the settings under the keys that pipeline.toml has today."""
    return settings


def value(item: Any) -> str:
    """A value as TOML."""
    if isinstance(item, dict):
        return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in item.items()) + " }"
    if isinstance(item, list):
        return "[" + ", ".join(map(value, item)) + "]"
    return json.dumps(item)


def to_toml(settings: Settings, inputs: pathlib.Path) -> str:
    """The settings as a pipeline file, a line each; dotted keys make the tables. `INPUTS` stands for the folder of inputs."""
    text = "".join(f"{key} = {value(item)}\n" for key, item in rename(settings).items())
    return text.replace("INPUTS", str(inputs))


def to_sets(settings: Settings) -> list[str]:
    """The settings as arguments on the command line."""
    return [word for key, item in rename(settings).items() for word in ("--set", f"{key}={value(item)}")]
