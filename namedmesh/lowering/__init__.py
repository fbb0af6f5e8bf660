"""Where data lives and moves: plan, emission, export, compilation."""
