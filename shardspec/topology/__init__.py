"""Hardware and mesh -> the order of devices, with what each mesh axis runs over."""
