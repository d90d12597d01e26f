# SPDX-License-Identifier: MIT
"""The command line where its streams are closed, full, or of another encoding."""

import sys

import pytest

from fastattn import cli

BENCH = ["bench", "--shape", "1,1,1,1,3,4", "--peers", "none", "--seconds", "0.01"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("arguments", [["check", "--count", "2"], BENCH], ids=["check", "bench"])
def test_streams_may_be_closed(stream, arguments, monkeypatch):
    monkeypatch.setattr(sys, stream, None)  # what it is in a program that starts without it
    assert cli.main(arguments) == 0


def test_errors_do_not_take_another_stream(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["check", "--isa", "mmx"]) == 2
    assert capsys.readouterr().out == ""
