"""What all imports share: how foreign files are read, what comes of them, and the proof."""
