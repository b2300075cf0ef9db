"""Spec x Params -> ShardingPlan: which names an array has, and which mesh axes they get."""
