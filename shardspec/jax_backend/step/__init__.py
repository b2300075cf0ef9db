"""A user's step as JAX traces it and Shardy propagates it: what it sends, holds and computes."""
