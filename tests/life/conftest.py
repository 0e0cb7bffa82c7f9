"""Fixtures of these tests: a tiny checkpoint and a web server for pictures."""

from tests.cases.conftest import folder, web

__all__ = ["folder", "web"]
