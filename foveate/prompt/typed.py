"""What the text of a tool's parameter means, by the type that its schema gives it.

Owns the reading of the few JSON schema words that name a type. Promises that a text is never refused: what does not
fit its type stays text. Refuses to validate; whoever runs the tool does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 8
_KINDS: tuple[tuple[type, str], ...] = (
    (str, "string"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (dict, "object"),
    (list, "array"),
    (type(None), "null"),
)
_WORDS = {"True": True, "False": False, "None": None}  # as Python writes them, and some models


def is_text(schema: Any, key: str) -> bool:
    """Whether a parameter can be nothing but text: declared as a string, or not declared at all."""
    known = _parameter(schema, key)
    return known is None or _kinds(known, schema) == {"string"}


def typed(raw: str, schema: Any, key: str) -> Any:
    """The value of a declared parameter: JSON of a type that its schema allows, else the text."""
    kinds = _kinds(_parameter(schema, key), schema)
    try:
        value = _WORDS[raw.strip()] if raw.strip() in _WORDS else json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return raw
    fits = not kinds or _kind(value) in kinds or (_kind(value) == "integer" and "number" in kinds)
    return value if fits or "string" not in kinds else raw


def _parameter(schema: Any, key: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def _kind(value: Any) -> str:
    return next(name for kind, name in _KINDS if isinstance(value, kind))


def _kinds(schema: Any, root: Any, depth: int = 0) -> set[str]:
    """Names of the types that a schema allows; empty when it does not say."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return set()
    if isinstance(schema.get("$ref"), str):
        return _kinds(_resolve(schema["$ref"], root), root, depth + 1)
    named = schema.get("type")
    if named is not None:
        return {named} if isinstance(named, str) else {name for name in named if isinstance(name, str)}
    if isinstance(schema.get("enum"), list):
        return {_kind(value) for value in schema["enum"]}
    if "const" in schema:
        return {_kind(schema["const"])}
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    found = [_kinds(choice, root, depth + 1) for choice in choices]
    return set().union(*found) if all(found) else set()


def _resolve(reference: str, root: Any) -> Any:
    """The part of the schema that '#/…' points to."""
    value = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        value = value.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(value, Mapping) else None
    return value


def _refuse(word: str) -> Any:
    raise ValueError(word)
