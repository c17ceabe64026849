"""A small decoder in numpy, for what must be measured on real attention: its tokens, its weights, its forward pass."""
