"""The small expressions of the language: text -> nodes, faults with their places, and back."""
