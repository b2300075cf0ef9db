"""How many mistakes in the package's own code its tests notice: `python -m tests.probe`."""
