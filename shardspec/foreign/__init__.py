"""Rules and plans of other tools, one file a tool, both ways: import, export and the proof."""
