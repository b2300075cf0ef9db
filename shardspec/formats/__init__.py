"""Plans as files for other tools."""
