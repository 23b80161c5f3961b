"""What a wrong command line is answered with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ringdp.cli.main import main


@pytest.fixture
def refusal(capsys) -> Callable[..., str]:
    """refusal("plan", "--ranks", "many"): the one line that is printed, with status 2 and nothing else."""

    def refusal(*arguments: str) -> str:
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = stop.code
        said = capsys.readouterr()
        assert (status, said.out, said.err.count("\n")) == (2, "", 1), said.err
        return said.err

    return refusal
