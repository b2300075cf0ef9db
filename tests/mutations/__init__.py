"""Realistic mistakes, made in whole specs: does `shardspec check` speak up?

`mutators` makes them, `judging` says what a mistake does to the plan and what the findings say,
`census` counts, and `python -m tests.mutations` prints the count (docs/mutations.md).
"""
