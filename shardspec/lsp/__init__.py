"""The language server: what an editor asks about a spec, answered from what `check` works out."""
