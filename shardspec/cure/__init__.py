"""The cure: the lines that a step lacks, found by search and written into the code."""
