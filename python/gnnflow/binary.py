"""Finds and runs the program `gnnflow`."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from .error import Error

VARIABLE = "GNNFLOW_BINARY"


def find() -> str:
    """Returns the path of the program.

    It is named by the environment variable ``GNNFLOW_BINARY``; or it is in the scripts folder of this Python; or on the
    ``PATH``.
    """
    if named := os.environ.get(VARIABLE):
        if shutil.which(named) is None:
            raise Error(f"{VARIABLE} names `{named}`, which is not a program; correct or remove this variable")
        return named
    scripts = sysconfig.get_path("scripts")
    found = shutil.which("gnnflow", path=scripts) or shutil.which("gnnflow")
    if found is None:
        raise Error(
            f"the program `gnnflow` is neither in {scripts} nor on the PATH; install it, or set {VARIABLE} to its path"
        )
    return found


def execute(arguments: list[str | Path]) -> str:
    """Runs the program and returns its stdout. Its stderr is copied to ``sys.stderr`` as it comes.

    Raises ``Error`` with the program's errors and exit code if it fails.
    """
    command = [find(), *map(str, arguments)]
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE) as process:
            try:
                messages = _copy_messages(process.stderr)
            except BaseException:
                process.terminate()
                raise
        if process.returncode != 0:
            found = messages.find("error: ")
            text = messages[max(found, 0) :].strip().replace("\nerror: ", "\n").removeprefix("error: ")
            # Errors in arguments end with the usage of the command line.
            text = re.split(r"\n\n(?:Usage: |For more information)", text)[0].replace("\n  [", " [")
            raise Error(text or f"`{command[0]}` failed without a message", process.returncode)
        output.seek(0)
        return output.read().decode()


def _copy_messages(stream: Any) -> str:
    """Copies the program's stderr to ``sys.stderr`` and returns its end."""
    decoder, end = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while chunk := stream.read1(1 << 16):
        text = decoder.decode(chunk)
        sys.stderr.write(text)
        sys.stderr.flush()
        end = (end + text)[-(1 << 16) :]
    return end
