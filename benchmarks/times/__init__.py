"""Published training steps: predicted, and compared with what others measured."""
