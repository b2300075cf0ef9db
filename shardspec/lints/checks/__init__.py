"""One file a finding: its page (the docstring), a bad and a good example, and what finds it."""
