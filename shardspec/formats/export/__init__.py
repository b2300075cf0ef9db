"""Plans and rules for other tools: what each can hold, what it cannot, and the proof."""
