"""XLA's compilers for TPUs and GPUs, asked without a device: what they make of a step."""
