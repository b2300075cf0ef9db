"""The lines that a traced step lacks: what could be constrained, priced in processes."""
