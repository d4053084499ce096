"""The JSON Schema of scenario files."""

from typing import Any

from nestsim.scenario.tables import ScenarioTable

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def scenario_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) that editors check scenarios with."""
    schema = _for_editors(ScenarioTable.model_json_schema(mode="validation"))
    return {"$schema": DIALECT, **schema, "title": "nestsim scenario"}


def _for_editors(schema: Any) -> Any:
    """Undo the line breaks of docstrings, and leave out null, which TOML has not."""
    if isinstance(schema, list):
        return [_for_editors(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _for_editors(one) for key, one in schema.items()}
    if isinstance(plain.get("description"), str):
        plain["description"] = " ".join(plain["description"].split())
    if "default" in plain and plain["default"] is None:
        del plain["default"]
    variants = [one for one in plain.get("anyOf", []) if one != {"type": "null"}]
    if len(variants) == 1:
        del plain["anyOf"]
        plain = {**variants[0], **plain}
    return plain
