"""Whether a sharded step computes what the same step computes on one device."""
