"""Sums over the devices of a mesh axis, proved from the program that JAX traces."""
