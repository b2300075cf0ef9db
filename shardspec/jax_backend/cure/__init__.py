"""The lines that a traced step lacks: what could be constrained, tried in processes of their own."""
