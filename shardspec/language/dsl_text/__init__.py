"""DSL text -> the same plain data as YAML gives, and back."""
