"""Sharding constraints that a step lacks, written into the user's own code as a diff."""
