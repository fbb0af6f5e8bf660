"""From pairs of text to packed batches of token ids."""
