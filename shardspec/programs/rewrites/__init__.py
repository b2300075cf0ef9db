"""What compilers do to a program once XLA has partitioned it: passes from program to program."""
