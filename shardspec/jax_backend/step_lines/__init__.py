"""The lines of `step:` that say what a traced function computes."""
