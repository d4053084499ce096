"""``nestsim schema``."""


def schema() -> None:
    """Print the JSON Schema of scenario files.

    Editors with a TOML language server complete and check scenarios with it.

    Example: `nestsim schema > scenario.schema.json`, and as the first line of a
    scenario `#:schema ./scenario.schema.json`
    """
    import json

    import typer

    from nestsim.scenario.schema import scenario_schema

    typer.echo(json.dumps(scenario_schema(), indent=2, ensure_ascii=False))
