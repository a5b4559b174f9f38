def modelled_statement(run: object) -> str | None:
    return None
