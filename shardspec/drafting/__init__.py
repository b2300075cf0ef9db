"""A first spec for arrays that somebody has: machines, rules and names, every guess marked."""
