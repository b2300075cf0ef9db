"""What checks share: the arrays, rules, names and sizes that findings are about."""
