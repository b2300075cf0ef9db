"""Drop-ins with the names and behaviour of T5X and Flax Linen, answered by our own stages."""
