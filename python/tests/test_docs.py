"""The examples of the README and of the book's page run."""

import contextlib
import io
import re
from pathlib import Path

from .common import FolderCase

PYTHON = Path(__file__).resolve().parents[1]


class DocsTest(FolderCase):
    def test_examples_run(self) -> None:
        for page, last in ((PYTHON / "README.md", "prediction"), (PYTHON.parent / "docs/book/src/python.md", "(2000, 4)")):
            examples = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
            self.assertTrue(examples, page)
            printed, names = io.StringIO(), {}
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                for example in examples:
                    exec(compile(example, str(page), "exec"), names)
            self.assertIn(last, printed.getvalue())
