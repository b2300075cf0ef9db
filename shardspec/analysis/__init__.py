"""ShardingPlan -> numbers. Every figure keeps its cause."""
