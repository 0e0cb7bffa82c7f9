"""Reading the fields of a config.json: what is missing is collected and told at once, what is not computed is refused.

Owns the complaints, each naming the field by its path. Promises that no value comes from a default that the caller did
not give: library defaults differ from the releases. Knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foveate.core.errors import CheckpointError


class Fields:
    """One object of config.json at `path`, '' for the top level."""

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data, self.path, self.missing = data, path, list[str]()

    def count(self, name: str) -> int:
        """A whole number of at least one."""
        value = self._get(name)
        if value is None:
            return 1
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"config.json: {self.path}{name} {value!r} is not a positive whole number")
        return value

    def real(self, name: str) -> float:
        """A positive number."""
        value = self._get(name)
        if value is None:
            return 1.0
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise CheckpointError(f"config.json: {self.path}{name} {value!r} is not a positive number")
        return float(value)

    def fixed(self, name: str, value: Any) -> None:
        """A field that, where present, must say what is computed."""
        found = self.data.get(name, value)
        if found != value:
            raise CheckpointError(f"config.json: {self.path}{name} {found!r} is not supported, only {value!r}")

    def close(self, *others: Fields) -> None:
        """Raise CheckpointError when anything was missing here or in the others."""
        missing = [name for fields in (self, *others) for name in fields.missing]
        if missing:
            raise CheckpointError(f"config.json lacks {', '.join(missing)}")

    def _get(self, name: str) -> Any:
        value = self.data.get(name)
        if value is None:
            self.missing.append(self.path + name)
        return value
