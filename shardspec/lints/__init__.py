"""Findings: pages in `pages/`, what finds them in `checks/`, what checks share in `evidence/`."""
