"""The only floor that imports jax: meshes, shardings and constraints from our plans."""
