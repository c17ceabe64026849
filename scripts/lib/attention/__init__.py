"""What a small decoder attends to in long texts, and choices of blocks that are judged by it."""
