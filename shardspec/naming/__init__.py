"""What the dimensions of arrays are called where nothing says it: guesses by path and size."""
