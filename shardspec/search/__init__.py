"""Many meshes for one model, ranked by what a step takes on each."""
