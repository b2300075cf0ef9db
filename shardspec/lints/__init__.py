"""Findings: one file each in `checks/` or `pages/`, and in `evidence/` what checks share."""
