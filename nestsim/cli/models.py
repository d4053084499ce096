"""``nestsim models``."""

from nestsim.cli.arguments import Json


def models(as_json: Json = False) -> None:
    """List the models that a scenario can name.

    Example: `nestsim models`, then in a scenario: `[model] name = "llama3-8b"`
    """
    import typer

    from estimators.models.library import LIBRARY

    if as_json:
        from dataclasses import asdict

        from nestsim.report.json import dump_json

        library = {
            name: {**asdict(model.spec), "source": model.source}
            for name, model in LIBRARY.items()
        }
        typer.echo(dump_json(library), nl=False)
        return
    from nestsim.cli.output import print_table

    rows = []
    for name, (spec, _) in LIBRARY.items():
        experts = f"{spec.num_moe_experts}, top {spec.moe_router_topk}"
        sizes = (
            spec.num_layers,
            spec.hidden_size,
            spec.ffn_hidden_size,
            spec.num_attention_heads,
            spec.num_query_groups,
            spec.vocab_size,
            spec.sequence_length,
        )
        rows.append(
            (
                name,
                spec.family,
                *(str(size) for size in sizes),
                experts if spec.num_moe_experts else "",
            )
        )
    print_table(
        {
            "name": False,
            "family": False,
            "layers": True,
            "hidden": True,
            "ffn": True,
            "heads": True,
            "groups": True,
            "vocabulary": True,
            "sequence": True,
            "experts": False,
        },
        rows,
    )
