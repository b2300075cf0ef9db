"""The nouns: frozen values that every stage reads and none changes. No I/O."""
