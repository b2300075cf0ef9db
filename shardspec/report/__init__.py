"""Plans for people: tables, explanations, drawings. Plain text unless a person watches."""
