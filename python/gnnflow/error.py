"""The error of this package."""

from __future__ import annotations


class Error(Exception):
    """What is wrong, where, and what to do.

    ``exit_code`` is that of the program if it has failed: 2 the pipeline file, 3 the input data, 4 this machine, 5 the
    cluster, 70 a bug, 130 interrupted. Otherwise it is ``None``.
    """

    def __init__(self, message: str, exit_code: int | None = None):
        super().__init__(message)
        self.exit_code = exit_code
